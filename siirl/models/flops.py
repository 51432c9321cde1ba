"""Formulas for the floating-point operations of a forward pass; models sum these parts.

A multiplication with an addition counts as two. Products of matrices, convolutions and attention
count; norms, softmax and activations do not. Attention counts every pair of positions, as
torch.utils.flop_counter does and as MFU is defined (PaLM, arXiv 2204.02311, appendix B), although a
causal kernel skips half of them. A test compares each formula with that counter.

Left out: recomputed activations, which MFU does not count (HFU does).
"""

from typing import TYPE_CHECKING, Any

from torch import nn

from vjepa.vision_transformer import VideoTransformerConfig

if TYPE_CHECKING:  # imports image libraries
    from siirl.models.openvla_vision import EncoderShape

# Cost of a training pass in forward passes: the backward pass computes the gradients of inputs and
# of weights, each as costly as the forward pass. Frozen weights have no gradients.
TRAINED_WEIGHTS, ADAPTERS = 3, 2


def block_flops(
    *,
    tokens: int,
    pairs: int,
    width: int,
    hidden: int,
    query_width: int,
    key_width: int,
    gated: bool,
) -> int:
    """One transformer block.

    Args:
        tokens: Places that are computed.
        pairs: Pairs of a query with a key.
        width: Channels between blocks.
        hidden: Channels inside the MLP.
        query_width: Query heads times channels of a head.
        key_width: Key heads times channels of a head; values have the same.
        gated: Whether the MLP has a third matrix (SwiGLU).
    """
    projections = 2 * tokens * width * (2 * query_width + 2 * key_width)
    attention = 2 * 2 * pairs * query_width  # scores, and the mix of values
    return projections + attention + 2 * tokens * width * hidden * (3 if gated else 2)


def decoder_flops(config: Any, *, tokens: int, pairs: int, head_tokens: int) -> int:
    """A decoder of the Llama family.

    Args:
        config: The model's configuration in transformers.
        tokens: Places that are computed, over all texts.
        pairs: Sum of squared lengths of the texts; with keys of earlier passes more.
        head_tokens: Places whose logits are computed.
    """
    text = config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    block = block_flops(
        tokens=tokens,
        pairs=pairs,
        width=text.hidden_size,
        hidden=text.intermediate_size,
        query_width=text.num_attention_heads * head,
        key_width=text.num_key_value_heads * head,
        gated=True,
    )
    return text.num_hidden_layers * block + 2 * head_tokens * text.hidden_size * text.vocab_size


def video_flops(config: VideoTransformerConfig) -> int:
    """V-JEPA's encoder on one clip."""
    tokens = config.num_tokens
    patch = 3 * config.tubelet_size * config.patch_size**2
    block = block_flops(
        tokens=tokens,
        pairs=tokens**2,
        width=config.width,
        hidden=round(config.width * config.mlp_ratio),
        query_width=config.width,
        key_width=config.width,
        gated=False,
    )
    return config.depth * block + 2 * tokens * patch * config.width


def image_flops(shape: "EncoderShape", *, patches: int) -> int:
    """One of OpenVLA's image encoders, without its last block, on one image."""
    tokens = patches + shape.registers + (1 if shape.registers else 0)
    block = block_flops(
        tokens=tokens,
        pairs=tokens**2,
        width=shape.width,
        hidden=shape.hidden,
        query_width=shape.width,
        key_width=shape.width,
        gated=False,
    )
    return (shape.blocks - 1) * block + 2 * patches * 3 * shape.patch**2 * shape.width


def linear_flops(module: nn.Module) -> int:
    """All linear layers, each on one row."""
    return sum(
        2 * part.in_features * part.out_features
        for part in module.modules()
        if isinstance(part, nn.Linear)
    )
