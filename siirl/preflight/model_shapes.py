"""Shapes of published models, read from config.json: weights, adapters and activations by formula.

A place is a token or a patch of a transformer's input sequence; "bytes per place" counts the memory
that the backward pass keeps for it. The formulas of a block list the tensors that autograd saves in
the modules of transformers and `siirl.models.openvla_vision`, with an attention kernel that keeps
no scores; tests count the saved tensors of real modules.

Left out: mixtures of experts, and architectures that are not in `DECODERS` (of them only the
weights are counted, `unknown_shape`); the adapters' own activations (the inputs of their layers
once more, in `rank` channels).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.libero.openvla_conventions import IMAGE_SIZE
from envs.libero.suites import ACTION_SIZE, PROPRIOCEPTION_SIZE
from siirl.files.documents import read_object
from siirl.files.weight_files import CONFIG_FILE
from siirl.models.openvla_vision import EncoderShape, encoder_shape


@dataclass(frozen=True)
class AttentionShape:
    """Differences between the attention layers of known decoders."""

    bias: bool = False
    """Whether q, k and v have a bias."""
    norms: bool = False
    """Whether q and k pass an RMSNorm over the entries of a head."""


DECODERS = {
    "llama": AttentionShape(),
    "mistral": AttentionShape(),
    "qwen2": AttentionShape(bias=True),
    "qwen3": AttentionShape(norms=True),
}
"""Known decoders, by `model_type`."""
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
LLAMA = {"model_type": "llama", **dict(zip(SIZES, (4096, 11008, 32, 32), strict=True))}
"""Defaults of transformers' LlamaConfig, which the published OpenVLA config.json relies on."""
PATCH = 14  # pixels per side, of both published encoders
QUESTION_LENGTH = 96
"""Places of a question, the default of `siirl.models.openvla_checkpoint.load_openvla_oft`."""
ACTION_HEAD_FILE = "action_head--*_checkpoint.pt"
"""A regression head of OpenVLA-OFT, which is not in config.json."""


@dataclass(frozen=True)
class NumberSizes:
    """Bytes per number in the passes."""

    compute: int
    """Inputs of products: 2 in bfloat16, 4 in float32."""
    residual: int
    """The residual stream: 4 under autocast, since embeddings are float32."""
    compiled: bool = False
    """Whether torch.compile fuses operations, which then keep fewer activations."""
    adapted: bool = False
    """Whether layers have adapters, which read their input in float32."""

    @property
    def casts(self) -> bool:
        """Whether autocast casts weights, and the input of each product, to the compute dtype."""
        return self.residual != self.compute

    @property
    def copies(self) -> int:
        """Copies of the input of q, k and v, and of gate and up, that are kept: one for each
        product that casts its own, otherwise two for all five.
        """
        return 5 if self.casts or (self.adapted and self.compute < 4) else 2


@dataclass(frozen=True)
class Stack:
    """Equal transformer blocks."""

    blocks: int
    width: int
    hidden: int
    query_width: int
    key_width: int
    gated: bool
    """SwiGLU and RMSNorm as in Llama; else GELU, LayerNorm and biases as in a vision transformer.
    """
    query_bias: bool = False
    head_norm: int = 0
    """Entries of a head, if q and k are normalised over them."""
    scaled: bool = False
    heads: int = 1
    """Query heads of a decoder, which the GPUs of an engine divide among them."""

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of a block's linear layers."""
        width = self.width
        hidden = self.hidden
        query = self.query_width
        key = self.key_width
        attention = [(width, query), (width, key), (width, key), (query, width)]
        if self.gated:
            return (*attention, (width, hidden), (width, hidden), (hidden, width))
        return ((width, query + 2 * key), (query, width), (width, hidden), (hidden, width))

    @property
    def block_parameters(self) -> int:
        """Weights of one block."""
        products = sum(inputs * outputs for inputs, outputs in self.linears)
        if self.gated:
            biases = (self.query_width + 2 * self.key_width) * self.query_bias
            return products + biases + 2 * self.width + 2 * self.head_norm  # four RMSNorms
        biases = sum(outputs for _, outputs in self.linears)
        norms = 4 * self.width  # two LayerNorms, weight and bias
        return products + biases + norms + 2 * self.width * self.scaled

    def block_bytes(self, computing: NumberSizes) -> int:
        """Bytes per place that one block keeps for its backward pass."""
        return self._gated_bytes(computing) if self.gated else self._plain_bytes(computing)

    def input_bytes(self, computing: NumberSizes) -> int:
        """Bytes per place of a block's input, the only one kept if activations are recomputed."""
        return computing.residual * self.width

    def token_bytes(self, compute: int) -> int:
        """Bytes of keys and values per token in all blocks, at `compute` bytes per number."""
        return 2 * self.blocks * self.key_width * compute

    def _gated_bytes(self, computing: NumberSizes) -> int:
        width, compute = self.width, computing.compute
        # RMSNorm: its input in float32, the normalised input for the gradient of the weight;
        # compiled, its own input
        norms = 2 * (4 * (not computing.compiled) + computing.residual) * width
        inputs = computing.copies * compute * width
        # q, and k and v repeated for the query heads; the kernel's output, and its transpose
        attention = 5 * compute * self.query_width
        # gate, silu(gate), up, their product; compiled, without the second
        gate = (3 if computing.compiled else 4) * compute * self.hidden
        heads = (4 + compute) * (self.query_width + self.key_width) * (self.head_norm > 0)
        return norms + inputs + attention + heads + gate

    def _plain_bytes(self, computing: NumberSizes) -> int:
        width, compute = self.width, computing.compute
        norms = 2 * (computing.residual + compute) * width
        attention = 5 * compute * width  # q, k, v, the kernel's output, and its transpose
        scales = 2 * compute * width * self.scaled
        return norms + attention + scales + 2 * compute * self.hidden  # GELU's input and output


@dataclass(frozen=True)
class ModelShape:
    """A model as a list of stacks and the weights besides them."""

    stacks: tuple[Stack, ...]
    """The stacks; the decoder is the last. Empty for an unknown architecture."""
    other_linears: tuple[tuple[int, int], ...]
    """Linear layers with adapters outside the stacks."""
    other_parameters: int
    """Weights outside the stacks: embeddings, head, norms, patches, projectors."""
    head_parameters: int = 0
    """Weights of a language model's head; a critic has none."""
    images: tuple[int, ...] = ()
    """Places of an observation in each stack but the last."""
    is_critic: bool = False
    """Whether a value head replaces the policy's head."""
    frozen: int = 0
    """Weights that are never trained."""

    @property
    def is_known(self) -> bool:
        """Whether more is known than the number of weights."""
        return bool(self.stacks)

    @property
    def decoder(self) -> Stack:
        """The stack of the language model."""
        return self.stacks[-1]

    @property
    def parameters(self) -> int:
        """All weights."""
        blocks = sum(stack.blocks * stack.block_parameters for stack in self.stacks)
        return blocks + self.other_parameters

    @property
    def largest_block(self) -> int:
        """Weights of the largest block, a unit of FSDP2."""
        return max(stack.block_parameters for stack in self.stacks)

    def adapter_parameters(self, rank: int) -> int:
        """Weights of LoRA adapters in all linear layers but the head: `rank (inputs + outputs)`."""
        channels = sum(map(sum, self.other_linears))
        channels += sum(stack.blocks * sum(map(sum, stack.linears)) for stack in self.stacks)
        return rank * channels


def decoder_shape(config: Mapping[str, Any], *, critic: bool = False) -> ModelShape | None:
    """Shape of a causal language model, or of a critic on it, from its config.json; None for an
    unknown architecture.
    """
    kind = config.get("model_type")
    if kind not in DECODERS or not config.keys() >= {*SIZES, "vocab_size"}:
        return None
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or width // heads
    stack = Stack(
        blocks=config["num_hidden_layers"],
        width=width,
        hidden=config["intermediate_size"],
        query_width=heads * head,
        key_width=(config.get("num_key_value_heads") or heads) * head,
        gated=True,
        query_bias=DECODERS[kind].bias,
        head_norm=head * DECODERS[kind].norms,
        heads=heads,
    )
    tables = 1 if critic or config.get("tie_word_embeddings", False) else 2
    value_head = (width + 1) * critic
    return ModelShape(
        stacks=(stack,),
        other_linears=(),
        other_parameters=tables * config["vocab_size"] * width + width + value_head,
        head_parameters=0 if critic else config["vocab_size"] * width,
        is_critic=critic,
    )


def openvla_shape(
    config: Mapping[str, Any], *, images: int, regression: bool = False, critic: bool = False
) -> ModelShape | None:
    """Shape of an OpenVLA from its config.json, with proprioception; None with another language
    model.

    Args:
        config: Configuration of the checkpoint.
        images: Images of an observation.
        regression: Whether it has a regression head.
        critic: Whether the shape is that of a critic on it.
    """
    text = decoder_shape({**LLAMA, **config["text_config"]}, critic=critic)
    if text is None:
        return None
    encoders = [encoder_shape(name) for name in config["timm_model_ids"]]
    patches = [(IMAGE_SIZE // encoder.patch) ** 2 for encoder in encoders]
    width, seen = text.decoder.width, sum(encoder.width for encoder in encoders)
    projectors = _chain(
        (seen, 4 * seen, width, width) if len(encoders) > 1 else (seen, width, width)
    )
    projectors += _chain((PROPRIOCEPTION_SIZE, width, width))
    head = ((ACTION_SIZE * width, width), (width, width), (width, width), (width, ACTION_SIZE))
    projectors += head if regression else ()
    beside = sum(inputs * outputs + outputs for inputs, outputs in projectors)
    # four LayerNorms, and the learnt deviation
    beside += regression * (2 * (ACTION_SIZE + 3) * width + ACTION_SIZE)
    beside += sum(map(_embedding, encoders, patches))
    return ModelShape(
        stacks=(*(map(_vision_stack, encoders)), *text.stacks),
        other_linears=projectors,
        other_parameters=text.other_parameters + beside,
        images=tuple(
            images * (number + _extra(encoder))
            for encoder, number in zip(encoders, patches, strict=True)
        ),
        is_critic=critic,
    )


def openvla_places(*, images: int, question: int, actions: int) -> int:
    """Places of the language model for one observation: <s> and the question, patches,
    proprioception, the tokens of `actions`, </s>.
    """
    patches = images * (IMAGE_SIZE // PATCH) ** 2
    return patches + 1 + question + actions * ACTION_SIZE + 1 + 1


def unknown_shape(parameters: int, *, frozen: int = 0) -> ModelShape:
    """Shape of an unknown architecture with `parameters` weights, `frozen` ones among them."""
    return ModelShape(stacks=(), other_linears=(), other_parameters=parameters, frozen=frozen)


def read_shape(folder: Path, *, images: int, critic: bool = False) -> ModelShape | None:
    """The shape of the model in a folder, or of a critic on it; None without config.json, or for an
    unknown architecture.

    Raises:
        CheckpointError: A config.json that cannot be read.
    """
    file = folder / CONFIG_FILE
    if not file.is_file():
        return None
    config = read_object(file, remedy="Copy or download it again.")
    if "timm_model_ids" in config and "text_config" in config:
        regression = not critic and any(folder.glob(ACTION_HEAD_FILE))
        return openvla_shape(config, images=images, regression=regression, critic=critic)
    return decoder_shape(config, critic=critic)


def _vision_stack(encoder: EncoderShape) -> Stack:
    return Stack(
        blocks=encoder.blocks - 1,  # the last is not run
        width=encoder.width,
        hidden=encoder.hidden,
        query_width=encoder.width,
        key_width=encoder.width,
        gated=False,
        scaled=encoder.scaled,
    )


def _extra(encoder: EncoderShape) -> int:
    """Number of class and register tokens."""
    return encoder.registers + (1 if encoder.registers else 0)


def _embedding(encoder: EncoderShape, patches: int) -> int:
    """Weights of patches, positions, class and register tokens."""
    pixels = 3 * encoder.patch**2
    return encoder.width * (pixels + 1 + patches + _extra(encoder))


def _chain(widths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(itertools.pairwise(widths))
