"""LoRA adapters (https://arxiv.org/abs/2106.09685) from peft: adding in place, disabling, merging.

peft is imported only if an adapter is requested: its import takes many seconds.
"""

import contextlib
import functools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from siirl.errors import CheckpointError, ConfigError, UnknownNameError
from siirl.files.documents import is_count, read_object
from siirl.models.weight_rows import Assembly, Rows
from siirl.params.build import as_text
from siirl.params.model_args import LoraArguments

ADAPTER = "default"  # peft's name of the one adapter
BASE_WEIGHT = ".base_layer.weight"
MATRICES = (f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight")
PLACE = "actor_rollout_ref.model.lora"
LONGEST_LIST = 500  # characters of layer names in a message
ADAPTER_FILE = "lora.json"
"""Description of unmerged adapters, stored with the weights."""

Of = TypeVar("Of")


class Adaptable(nn.Module):
    """A model that can have adapters.

    The frozen model below them is the reference of a KL, without a second copy in memory.
    """

    lora: LoraArguments | None = None
    """Its adapters."""
    planned: Any = None
    """Weights that are still to be read (`siirl.models.weights.PlannedWeights`), or None."""

    @functools.cached_property
    def adapted(self) -> tuple[str, ...]:
        """Names of the layers that have an adapter."""
        if self.lora is None:
            return ()
        from peft.tuners.lora import LoraLayer

        return tuple(name for name, part in self.named_modules() if isinstance(part, LoraLayer))

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Disable the adapters in this context.

        Raises:
            ConfigError: The model has no adapter.
        """
        if self.lora is None:
            raise ConfigError(
                "This model has no LoRA adapter to disable: set actor_rollout_ref.model.lora.rank."
            )
        self._scale_adapters(0.0)
        try:
            yield
        finally:
            self._scale_adapters(1.0)

    def describe_adapters(self, folder: str | Path) -> None:
        """Write the description of the adapters into `folder`, if there are any."""
        if self.lora is not None:
            (Path(folder) / ADAPTER_FILE).write_text(json.dumps(vars(self.lora), indent=1) + "\n")

    def _scale_adapters(self, factor: float) -> None:
        """Scale the output of the adapters: 1 enables, 0 disables them.

        peft's own switch also freezes them; that conflicts with the optimiser and FSDP2.
        """
        for name in self.adapted:
            layer: Any = self.get_submodule(name)
            layer.set_scale(ADAPTER, factor)


def add_adapters(
    model: nn.Module, lora: LoraArguments, *, layers: Sequence[str] | None = None, seed: int = 0
) -> None:
    """Add adapters to a model; only they are trained from then on.

    Args:
        model: Changed in place.
        lora: Settings of the adapters.
        layers: Layers used without `target_modules`; None: all linear layers except the head, for a
            transformers model.
        seed: Seed of the first matrices (A, section 4.1 of the paper); the second ones are zeros.

    Raises:
        ConfigError: Layers that the model does not have, or a rank that is too large
            (`adapted_layers`).
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = list(adapted_layers(model, lora, layers=layers))
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        lora_dropout=lora.dropout,
        bias="none",
    )
    # peft draws from torch's global generator
    with torch.random.fork_rng(devices=[]), _without_memory_on_cpu(model, targets):
        torch.manual_seed(seed)
        inject_adapter_in_model(settings, model, adapter_name=ADAPTER)


def narrow_frozen(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast the frozen weights of a model with adapters to the compute dtype.

    Nothing changes without adapters. Weights on the meta device are loaded in that dtype.
    """
    if not any(isinstance(part, Adaptable) and part.lora for part in module.modules()):
        return
    narrow((weight for weight in module.parameters() if not weight.requires_grad), dtype)


def narrow(weights: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
    """Cast weights to the compute dtype; those on the meta device are loaded in it."""
    for weight in weights:
        if weight.is_floating_point():
            weight.data = weight.data.to(dtype)


@contextlib.contextmanager
def _without_memory_on_cpu(model: nn.Module, layers: Sequence[str]) -> Iterator[None]:
    """Show meta weights of these layers as CPU weights without memory in this context.

    peft moves a new adapter to the device of its layer, and on the meta device its numbers would be
    lost.
    """
    parts: dict[str, Any] = {name: model.get_submodule(name) for name in layers}
    on_meta = {name: part.weight for name, part in parts.items() if part.weight.is_meta}
    for name, weight in on_meta.items():
        parts[name].weight = nn.Parameter(weight.new_zeros((), device="cpu").expand(weight.shape))
    try:
        yield
    finally:
        for name, weight in on_meta.items():
            parts[name].weight = weight.requires_grad_(parts[name].weight.requires_grad)


def adapted_layers(
    model: nn.Module, lora: LoraArguments, *, layers: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Names of the layers that get an adapter.

    Needs neither weights (`torch.device("meta")`) nor peft.

    Args:
        model: Model whose linear layers are searched; it is not changed.
        lora: Settings of the adapters.
        layers: Layers used without `target_modules`.

    Raises:
        ConfigError: A target module that is not a linear layer of the model, no layer at all, or a
            rank above the smaller side of a layer.
    """
    shapes = {
        name: tuple(part.weight.shape) for name, part in model.named_modules() if _is_linear(part)
    }
    sides = {name: min(shape) for name, shape in shapes.items()}
    if lora.target_modules is not None:
        chosen = _matching(lora.target_modules, sides)
    elif layers is not None:
        chosen = list(layers)
    else:
        head: Any = model.get_output_embeddings()  # type: ignore[operator]  # of transformers
        chosen = [name for name in sides if model.get_submodule(name) is not head]
    if not chosen:
        raise ConfigError(
            f"{PLACE}.rank={lora.rank}: {type(model).__name__} trains no linear layer that could "
            f"get an adapter: name its layers in {PLACE}.target_modules, or leave the rank at 0."
        )
    narrow = min(chosen, key=lambda name: sides[name])
    if lora.rank > sides[narrow]:
        rows, columns = shapes[narrow]
        wide = ",".join(name for name in chosen if sides[name] >= lora.rank)
        other = (
            f", or name wider layers: {PLACE}.target_modules=[{wide}]"
            if 0 < len(wide) < LONGEST_LIST
            else ""
        )
        raise ConfigError(
            f"{PLACE}.rank={lora.rank} is more than layer {narrow} of {rows} x {columns} allows: "
            f"lower it to {sides[narrow]}{other}."
        )
    return tuple(chosen)


def _is_linear(part: nn.Module) -> bool:
    # Conv1D is GPT-2's linear layer in transformers
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"


def _matching(targets: Sequence[str], layers: Collection[str]) -> list[str]:
    """Layers whose name, or its end, is one of `targets`."""
    if not targets:
        raise ConfigError(
            f"{PLACE}.target_modules=[] names no layer: name some, or leave it out for all linear "
            "layers."
        )
    for target in targets:
        if not any(_ends_with(name, target) for name in layers):
            ends = {name.rpartition(".")[2] for name in layers}
            known = {end for end in ends if not end.isdigit()} or set(layers)
            if "." in target or target.isdigit():
                known |= set(layers)
            raise UnknownNameError.of(
                kind=f"linear layer ({PLACE}.target_modules)", name=target, known=known
            )
    return [name for name in layers if any(_ends_with(name, target) for target in targets)]


def _ends_with(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def stored_adapters(folder: str | Path) -> LoraArguments | None:
    """Unmerged adapters of a checkpoint's folder, or None."""
    file = Path(folder) / ADAPTER_FILE
    if not file.is_file():
        return None
    content = read_object(file, remedy="Copy the checkpoint again.")
    try:
        lora = LoraArguments(**content)
    except TypeError as error:
        raise CheckpointError(f"{file} does not describe LoRA adapters: {error}.") from error
    names = lora.target_modules
    if (
        not is_count(lora.rank, least=1)
        or type(lora.alpha) not in (int, float)
        or not math.isfinite(lora.alpha)
    ):
        raise CheckpointError(
            f"{file} does not describe LoRA adapters: rank={lora.rank!r}, alpha={lora.alpha!r}."
        )
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) for name in names)
    ):
        raise CheckpointError(
            f"{file} does not describe LoRA adapters: target_modules={names!r} are not names."
        )
    return lora


def check_resumed_adapters(folder: Path, lora: LoraArguments) -> None:
    """Refuse to continue the checkpoint's model in `folder` with other adapters than its own.

    Raises:
        CheckpointError: Other adapters; with another alpha the weights would load.
    """
    own, its = _as_stored(lora), _as_stored(stored_adapters(folder) or LoraArguments())
    for name, value in own.items():
        if value != its[name]:
            raise CheckpointError(
                f"trainer.resume: this job has {PLACE}.{name}={as_text(value)}, but the weights in "
                f"{folder} were made with {as_text(its[name])}: repeat the words of that run's "
                "command."
            )


def _as_stored(lora: LoraArguments) -> dict[str, Any]:
    """What decides the function of adapters; the rank alone if there are none."""
    if lora.rank == 0:
        return {"rank": 0}
    names = lora.target_modules
    return {
        "rank": lora.rank,
        "alpha": float(lora.alpha),
        "target_modules": None if names is None else sorted(names),
    }


def name_without_adapters(name: str) -> str | None:
    """Name of a weight in a model without adapters; None for a weight of an adapter."""
    return None if ".lora_" in name else name.replace(".base_layer.", ".")


def adapters_first(state: Mapping[str, Of]) -> Iterator[tuple[str, Of]]:
    """The entries of `state`, weights or what belongs to one, in order, but an adapter's before the
    weight that it changes.
    """
    for name, tensor in state.items():
        layer = name.removesuffix(BASE_WEIGHT)
        if layer != name:
            yield from ((f"{layer}{matrix}", state[f"{layer}{matrix}"]) for matrix in MATRICES)
        if not name.endswith(MATRICES):
            yield name, tensor


def merged_in_turn(
    weights: Iterable[Rows], lora: LoraArguments, *, transposed: Collection[str] = ()
) -> Iterator[Rows]:
    """`merged` for weights that arrive a few rows at a time, in the order of `adapters_first`."""
    assembly = Assembly()
    matrices: dict[str, torch.Tensor] = {}  # those of the layer whose weight comes next
    for rows in weights:
        layer = rows.name.removesuffix(BASE_WEIGHT)
        if name_without_adapters(rows.name) is None:
            if rows.name.endswith(MATRICES[0]) and rows.first == 0:
                matrices = {}
            matrix = assembly.add(rows)
            if matrix is not None:
                matrices[rows.name] = matrix
        elif layer == rows.name:
            yield replace(rows, name=rows.name.replace(".base_layer.", "."))
        else:
            values = _with_adapter(
                rows.values,
                *(matrices[f"{layer}{matrix}"] for matrix in MATRICES),
                first=rows.first,
                scale=lora.alpha / lora.rank,
                transposed=layer in transposed,
            )
            yield replace(rows, name=f"{layer}.weight", values=values)


def _with_adapter(
    weight: torch.Tensor,
    down: torch.Tensor,
    up: torch.Tensor,
    *,
    scale: float,
    transposed: bool,
    first: int = 0,
) -> torch.Tensor:
    """Rows `weight` of a layer, from row `first` on, plus the same rows of `B A scale`."""
    rows = slice(first, first + len(weight))
    whole, part = up.float(), down.float()
    change = (whole @ part[:, rows]).T if transposed else whole[rows] @ part
    return (weight.float() + change * scale).to(weight.dtype)


def merged(
    state: Mapping[str, torch.Tensor], lora: LoraArguments, *, transposed: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """Weights with adapters merged: `W + B A alpha / rank`, in float32 (section 4.1 of the paper).

    Args:
        state: Whole tensors under the names of a model with adapters.
        lora: Settings of the adapters.
        transposed: Layers whose weight is [in, out].
    """
    weights = {
        plain: tensor
        for name, tensor in state.items()
        if (plain := name_without_adapters(name)) is not None
    }
    first = MATRICES[0]
    for layer in [name.removesuffix(first) for name in state if name.endswith(first)]:
        weights[f"{layer}.weight"] = _with_adapter(
            weights[f"{layer}.weight"],
            *(state[f"{layer}{matrix}"] for matrix in MATRICES),
            scale=lora.alpha / lora.rank,
            transposed=layer in transposed,
        )
    return weights
