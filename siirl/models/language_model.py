"""Trainable causal language models, from a folder or the Hugging Face hub: they map tokens to
hidden states.

The scorer applies the model's head, because the logits of a whole batch are its largest tensor
(`siirl.algos.linear_log_probs`). Weights keep their names in the Hugging Face model, so that
`from_pretrained` reads the `model.safetensors` of a checkpoint. Rows are packed side by side and
separated by their position ids, or by a mask made from them if the architecture makes none (OPT,
Falcon, gpt-oss). Both are tested on a few tokens when an architecture is loaded.

The frozen model below LoRA adapters is the reference policy (`without_adapter`), so a KL needs no
second copy in memory.
"""

# B row, S token, D entry of a hidden state, V entry of the vocabulary

import contextlib
import functools
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from siirl.errors import ConfigError, InvariantError
from siirl.models.adapters import (
    Adaptable,
    add_adapters,
    merged,
    merged_in_turn,
    name_without_adapters,
    stored_adapters,
)
from siirl.models.architecture_check import supports_masks, try_out
from siirl.models.lane_attention import LaneMask
from siirl.models.pretrained import (
    damage_named,
    miniature,
    plan_adapted,
    plan_causal_lm,
    quiet_transformers,
    read_causal_lm,
    read_config,
    source_of,
    takes_pictures,
)
from siirl.models.weight_rows import Rows
from siirl.models.weights import materialise
from siirl.params.model_args import LoraArguments

LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
NO_LIMIT = 1 << 20  # for models without position embeddings, which have no length limit


class LanguageModel(Adaptable):
    """A causal language model without its head.

    Args:
        causal_lm: Made by transformers' AutoModelForCausalLM.
        lora: The adapters in `causal_lm`, or None.
        vision_inputs: `siirl.models.vision_inputs.VisionInputs`; None: text only.
    """

    causal_lm: Any
    """The model with its head.

    It shares its parts with this module. It is not registered as a submodule, so that names stay
    those of transformers.
    """
    shares_prompts: bool
    """Whether it supports an attention mask over positions, so that answers share one prompt.

    Tested when it is loaded.
    """
    needs_mask: bool
    """Whether it makes its attention mask without positions, so that packed rows need one.

    Tested when it is loaded.
    """
    packs: bool
    """Whether several texts may share a row of the batch. Layers that pass on a state, cut a row
    into chunks, or accept only a mask of padding prevent it.

    Tested when it is loaded.
    """

    def __init__(
        self, causal_lm: Any, *, lora: LoraArguments | None = None, vision_inputs: Any = None
    ) -> None:
        super().__init__()
        for name, part in causal_lm.named_children():
            self.add_module(name, part)
        # nn.Module's own __setattr__ would register it as a submodule
        object.__setattr__(self, "causal_lm", causal_lm)
        self.config = causal_lm.config
        self.lora = lora
        self.vision_inputs = vision_inputs
        self.shares_prompts = False
        self.needs_mask = False
        self.packs = True

    @functools.cached_property
    def max_length(self) -> int:
        """Largest number of tokens of a prompt with its continuation.

        With longrope (Phi-3) it is the original context: a longer row would change the frequencies
        of the rows packed with it.
        """
        sizes = self.config.get_text_config().to_dict()
        longest = next((int(sizes[key]) for key in LENGTH_KEYS if sizes.get(key)), NO_LIMIT)
        rope = sizes.get("rope_parameters") or {}
        kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]
        original = [
            int(kind["original_max_position_embeddings"])
            for kind in kinds
            if kind.get("rope_type") == "longrope"
        ]
        return min([longest, *original])

    @property
    def vocab_size(self) -> int:
        """V, entries of the head; may exceed the tokenizer's."""
        return int(self.config.get_text_config().vocab_size)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | LaneMask | None = None,
        cache: Any = None,
        seen: Any = None,
    ) -> torch.Tensor:
        """Hidden states of the last layer [B, S, D]; each predicts the next token.

        Args:
            input_ids: int64 [B, S].
            position_ids: int64 [B, S]. Without an attention mask, one row may hold several texts if
                the model packs: each begins where positions restart, and does not attend to the
                others.
            attention_mask: int64 [B, S], 0 at padding; or, for models with `shares_prompts`, of
                lanes, or bool [B, 1, S, S]: whether a token (next to last axis) attends to another.
            cache: Keys and values of earlier tokens (a transformers cache); None: the input has all
                tokens.
            seen: Pictures in the texts (`siirl.models.vision_inputs.SeenPictures`), if it sees.
        """
        decoder = self.causal_lm.base_model
        mask = (
            attention_mask.for_model(self.causal_lm)
            if isinstance(attention_mask, LaneMask)
            else attention_mask
        )
        if mask is None and cache is None and self.needs_mask:
            mask = self._mask_between_rows(position_ids)
        inputs: dict[str, Any] = {"input_ids": input_ids, "position_ids": position_ids}
        if self.vision_inputs is not None:
            inputs = self.vision_inputs.inputs(
                decoder, input_ids, position_ids, seen=seen, generates=cache is not None
            )
        inputs |= {"attention_mask": mask, "past_key_values": cache, "use_cache": cache is not None}
        if self._accepted is not None:  # a mask, a cache or pictures that it lacks stay an error
            inputs = {
                name: value
                for name, value in inputs.items()
                if name in self._accepted or (value is not None and name != "position_ids")
            }
        return decoder(**inputs).last_hidden_state

    @functools.cached_property
    def _accepted(self) -> frozenset[str] | None:
        """Arguments of the decoder; None: any. Some recurrent ones take no positions."""
        arguments = inspect.signature(self.causal_lm.base_model.forward).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in arguments):
            return None
        return frozenset(each.name for each in arguments)

    def _mask_between_rows(self, position_ids: torch.Tensor) -> Any:
        """transformers' own mask for packed rows, one for each kind of layer (windows); None if
        nothing is packed.
        """
        from transformers.masking_utils import create_masks_for_generate

        states = torch.empty(  # of which only shape, type and device are read
            (*position_ids.shape, 0), dtype=self.causal_lm.dtype, device=position_ids.device
        )
        return create_masks_for_generate(self.config, states, None, None, position_ids)

    @property
    def output_weight(self) -> torch.Tensor:
        """Weights of the head [V, D]; those of the embedding if the two are tied.

        On several ranks they are whole from the forward pass to the end of its backward pass.

        Raises:
            InvariantError: They are currently sharded.
        """
        return _whole(self.causal_lm.get_output_embeddings().weight)

    @property
    def output_bias(self) -> torch.Tensor | None:
        """Bias of the head [V]; few models have one. See `output_weight`."""
        bias = self.causal_lm.get_output_embeddings().bias
        return None if bias is None else _whole(bias)

    def exported_weights(
        self, state: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Weights under the names of `from_pretrained` and vLLM, with adapters merged.

        Args:
            state: Whole tensors under this module's names, as from `TrainEngine.upload_weights`; by
                default its own.
        """
        state = dict(self.state_dict() if state is None else state)
        return state if self.lora is None else merged(state, self.lora, transposed=self._transposed)

    def exported_in_turn(self, weights: Iterable[Rows]) -> Iterator[Rows]:
        """`exported_weights`, a few rows at a time.

        Args:
            weights: Weights in the order of `TrainEngine.weights_in_turn`.
        """
        if self.lora is None:
            return iter(weights)
        return merged_in_turn(weights, self.lora, transposed=self._transposed)

    @property
    def _transposed(self) -> list[str]:
        """Layers with an adapter whose weight is [in, out]."""
        layers: dict[str, Any] = {name: self.get_submodule(name) for name in self.adapted}
        return [name for name, layer in layers.items() if layer.fan_in_fan_out]

    @property
    def exported_names(self) -> frozenset[str]:
        """Names of the weights that an engine loads; a tied weight has one name."""
        names = (name_without_adapters(name) for name, _ in self.named_parameters())
        return frozenset(name for name in names if name is not None)

    def save(
        self,
        folder: str | Path,
        *,
        state: Mapping[str, torch.Tensor] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Write a folder for transformers' from_pretrained and vLLM.

        It holds weights (adapters merged), config.json and generation_config.json.

        Args:
            folder: Created if missing.
            state: Whole tensors under this module's names; needed if the weights are sharded.
            dtype: Type in the file; by default that of the weights.

        Raises:
            InvariantError: Sharded weights.
            OSError: The folder cannot be written to.
        """
        weights = {
            name: _whole(tensor).detach().to("cpu", dtype)
            for name, tensor in self.exported_weights(state).items()
        }
        try:
            with quiet_transformers(), _writing_on_every_rank(self.causal_lm):
                self.causal_lm.save_pretrained(folder, state_dict=weights)
        except safetensors.SafetensorError as error:
            raise OSError(f"{folder} could not be written: {error}") from error

    def describe(self, folder: str | Path) -> None:
        """Write the configuration into `folder`, next to this module's `model.safetensors`.

        With adapters, only `load_language_model` reads such a folder; `save` writes one that other
        programs read.
        """
        if not self.config.architectures:
            self.config.architectures = [type(self.causal_lm).__name__]
        self.config.save_pretrained(folder)
        self.causal_lm.generation_config.save_pretrained(folder)
        self.describe_adapters(folder)


@contextlib.contextmanager
def _writing_on_every_rank(causal_lm: Any) -> Iterator[None]:
    """Let `save_pretrained` write on every rank in this context.

    transformers 5.19 writes only on rank 0 of a process group, but each rank has its own vLLM with
    its own folder.
    """
    causal_lm.should_save_on_this_rank = lambda is_main_process: is_main_process
    try:
        yield
    finally:
        del causal_lm.should_save_on_this_rank


def load_language_model(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    gradient_checkpointing: bool = False,
    lora: LoraArguments | None = None,
    seed: int = 0,
    weights: bool = True,
) -> LanguageModel:
    """Load a causal language model, in evaluation mode on the CPU.

    Args:
        path: A Hugging Face folder (`assets/...` is a shipped one), the folder of a checkpoint's
            engine, or a hub id.
        dtype: Type of the weights.
        trust_remote_code: Run code that comes with the model.
        gradient_checkpointing: Recompute a block's activations in the backward pass instead of
            keeping them.
        lora: Train adapters with this LoRA rank; None or rank 0: train all weights. A checkpoint
            with adapters keeps its own.
        seed: Seed of new adapters.
        weights: False leaves the weights on the meta device and plans to read them
            (`siirl.models.weights.materialise`), unless transformers has to convert them, or the
            architecture can only be tested with them.

    Raises:
        MissingAssetError: No such folder or hub id, or missing weights.
        CheckpointError: A truncated file, or weights of another model.
        ConfigError: Not a causal language model, or one whose head or rows training does not
            support.
    """
    source = source_of(path)
    config = read_config(source, trust_remote_code=trust_remote_code)
    stored = stored_adapters(source)
    new = lora if lora is not None and lora.rank > 0 else None
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    with damage_named(source, "config.json and its weights"):
        found = (
            plan_causal_lm(source, config, **options)
            if stored is None
            else plan_adapted(source, config, stored, **options)
        )
        causal_lm, planned = found or (read_causal_lm(source, config, **options), None)
        if stored is None and new is not None:
            add_adapters(causal_lm, new, seed=seed)
        vision_inputs = _vision_inputs_of(config, source)
        model = LanguageModel(
            causal_lm.eval(), lora=stored or new, vision_inputs=vision_inputs
        ).eval()
        model.planned = planned
        if weights:
            materialise(model, torch.device("cpu"))
        asked = model
        if model.planned is not None:
            small = miniature(config, trust_remote_code=trust_remote_code)
            if small is None:
                materialise(model, torch.device("cpu"))
            else:
                asked = LanguageModel(small, vision_inputs=vision_inputs)
        try_out(asked, source)
        model.needs_mask, model.packs = asked.needs_mask, asked.packs
        model.shares_prompts = asked.packs and supports_masks(asked)
    if gradient_checkpointing:
        recompute_activations(model)
    return model


def _vision_inputs_of(config: Any, source: str) -> Any:
    """`VisionInputs` of a model that takes pictures, else None."""
    if not takes_pictures(config):
        return None
    # imports Pillow and transformers' image processors, which text models do not need
    from siirl.models.seen_pictures import load_picture_reader
    from siirl.models.vision_inputs import VisionInputs

    return VisionInputs(load_picture_reader(source, config).vision)


def recompute_activations(model: nn.Module) -> None:
    """Let every transformer block keep only its input, and recompute the rest for its gradient.

    transformers' own switch works only in training mode, but the module stays in evaluation mode,
    without dropout.

    Raises:
        ConfigError: The architecture has no blocks that support it.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    blocks: list[Any] = [
        part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)
    ]
    if not blocks:
        raise ConfigError(
            "actor_rollout_ref.model.gradient_checkpointing: the model has no blocks whose "
            "activations can be recomputed; set it to false."
        )
    for block in blocks:
        # a bound method, so that a copy of the block gets its own
        block.forward = types.MethodType(_forward_that_recomputes, block)


def _forward_that_recomputes(block: Any, *arguments: Any, **named: Any) -> Any:
    forward = types.MethodType(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    return checkpoint(forward, *arguments, use_reentrant=False, **named)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        raise InvariantError(
            "These weights are sharded over ranks: they are whole between a forward pass and the "
            "end of its backward pass, or from TrainEngine.upload_weights()."
        )
    return tensor
