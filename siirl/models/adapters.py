"""LoRA adapters (https://arxiv.org/abs/2106.09685), which are peft's: put into a model in place, taken out of account, merged.

peft is imported only where an adapter is asked for: that takes many seconds.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from siirl.errors import ConfigError
from siirl.params.model_args import LoraArguments

ADAPTER = "default"  # peft's name of the one adapter


def add_adapters(causal_lm: nn.Module, lora: LoraArguments, *, seed: int = 0) -> None:
    """Put adapters into a model; nothing else of it is trained from then on.

    Args:
        causal_lm: Changed in place.
        lora: Which adapters.
        seed: Of their first matrices (A, section 4.1 of the paper); the second ones are zeros.

    Raises:
        ConfigError: `target_modules` that the model does not have.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = "all-linear" if lora.target_modules is None else list(lora.target_modules)
    settings = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=lora.dropout, bias="none")  # type: ignore[arg-type]
    try:
        with torch.random.fork_rng(devices=[]):  # peft draws from torch's own generator, which belongs to nobody
            torch.manual_seed(seed)
            inject_adapter_in_model(settings, causal_lm, adapter_name=ADAPTER)
    except ValueError as error:
        names = sorted({name.rpartition(".")[2] for name, part in causal_lm.named_modules() if isinstance(part, nn.Linear)})
        raise ConfigError(
            f"actor_rollout_ref.model.lora.target_modules={targets} cannot be adapted ({error}). The model's linear layers: "
            f"{', '.join(names)}."
        ) from error


def adapted_names(module: nn.Module) -> list[str]:
    """Names of the layers of `module` that have an adapter."""
    from peft.tuners.lora import LoraLayer

    return [name for name, part in module.named_modules() if isinstance(part, LoraLayer)]


def scale_adapters(module: nn.Module, names: Iterable[str], factor: float) -> None:
    """Multiply what adapters add: 1 as they were made, 0 as if there were none.

    peft's own switch also freezes the adapters, which an optimiser and FSDP2 have laid hands on by then.
    """
    for name in names:
        layer: Any = module.get_submodule(name)
        layer.set_scale(ADAPTER, factor)


def merged(module: nn.Module, names: Iterable[str], state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in `state` (whole tensors, under the names of `module`) without adapters, which are added to what they adapt.

    `W + B A alpha / rank`, in float32 (section 4.1 of the paper).
    """
    weights = {name.replace(".base_layer.", "."): tensor for name, tensor in state.items() if ".lora_" not in name}
    for name in names:
        layer: Any = module.get_submodule(name)
        down, up = (state[f"{name}.{matrix}.{ADAPTER}.weight"].float() for matrix in ("lora_A", "lora_B"))
        change = (up @ down) * (layer.lora_alpha[ADAPTER] / layer.r[ADAPTER])
        weight = weights[f"{name}.weight"]
        weights[f"{name}.weight"] = (weight.float() + (change.T if layer.fan_in_fan_out else change)).to(weight.dtype)
    return weights
