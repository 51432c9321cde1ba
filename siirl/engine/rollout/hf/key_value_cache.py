"""Key-value cache of running sequences, one slot each, as a transformers `Cache`.

Slots are preallocated, and every row writes at its own position. Sequences of different lengths
therefore decode together, rows leave and join between two passes, and no token causes an
allocation. The caches of transformers append equally to all rows; its paged cache needs one packed
row of all sequences and a kernel for it.

Left out: linear attention and other states that are not keys and values; such models need another
engine.
"""

# S slot, R running row (slots 0 to R-1), H key/value head, G query head of a key/value head, L
# position, T token of a prompt, D channel

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import AttentionInterface

from siirl.algos.products import HALVES, wide_product
from siirl.errors import ConfigError

ATTENTION = "siirl_slots"
"""Name under which transformers finds `attend`."""
LENGTH_STEP = 32
"""The length of slots is a multiple of this."""
GROWTH = 1.5
"""Slots that are too short grow at least by this factor, which bounds the number of copies."""
WITHOUT = ("softcap", "s_aux", "position_bias")
"""Arguments of attention functions that `attend` does not implement (Gemma 2, gpt-oss, T5)."""


class SlotCache(Cache):
    """Two tensors [S, H, L, D] for each layer, allocated when its first keys arrive.

    Call `prefill` or `decode` before each forward pass.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.rows = 0
        self.length = 0
        self.positions_R = torch.zeros(0, dtype=torch.long)
        self.longest = 0
        self._write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = self._write_tokens

    def reserve(self, *, rows: int, length: int) -> None:
        """Grow to this many slots of this many tokens, keeping the contents."""
        if rows <= self.rows and length <= self.length:
            return
        if length > self.length:
            length = -(-max(length, int(self.length * GROWTH)) // LENGTH_STEP) * LENGTH_STEP
        rows, length = max(rows, self.rows), max(length, self.length)
        for tensors in (self.keys, self.values):
            for layer, old_SHLD in enumerate(tensors):
                tensors[layer] = old_SHLD.new_zeros(
                    (rows, old_SHLD.shape[1], length, old_SHLD.shape[3])
                )
                tensors[layer][: old_SHLD.shape[0], :, : old_SHLD.shape[2]] = old_SHLD
        self.rows, self.length = rows, length

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(layer.nbytes for layer in (*self.keys, *self.values))

    def release(self) -> None:
        """Free the memory."""
        self.keys = []
        self.values = []
        self.rows = 0
        self.length = 0

    def prefill(self, *, slots: torch.Tensor, prompts: torch.Tensor) -> None:
        """Prepare a pass over whole prompts.

        Slot `slots[i]` gets the keys and values of row `prompts[i]` of the pass.
        """
        self.longest = 0
        self.slots = slots
        self.prompts = prompts
        self._write = self._write_prompts

    def decode(self, *, positions_R: torch.Tensor, longest: int) -> None:
        """Prepare a pass over one token per row, at these positions.

        Attention sees the first `longest` positions of each slot.
        """
        self.positions_R = positions_R
        self.longest = longest
        self.places: dict[int, torch.Tensor] = {}
        self._write = self._write_tokens

    def move(self, *, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy the first `longest` positions of some slots over others."""
        for storage_SHLD in (*self.keys, *self.values):
            used_SHLD = storage_SHLD[:, :, : self.longest]
            used_SHLD.index_copy_(0, targets, used_SHLD[sources])

    # Called by transformers

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx == len(self.keys):
            self.keys.append(self._storage(key_states))
            self.values.append(self._storage(value_states))
        return self._write(self.keys[layer_idx], key_states), self._write(
            self.values[layer_idx], value_states
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.longest - 1, 0)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return max(self.longest, query_length), 0

    # Writing of keys and values

    def _storage(self, states: torch.Tensor) -> torch.Tensor:
        # Zeros, not uninitialised memory: attention multiplies masked positions by zero, and NaN
        # would remain. The type is that of the passes: norms and rotations under autocast leave
        # keys in float32, and attention would round them each time.
        device = states.device.type
        dtype = (
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        )
        return states.new_zeros(
            (self.rows, states.shape[1], self.length, states.shape[3]), dtype=dtype
        )

    def _write_prompts(self, storage_SHLD: torch.Tensor, states_RHTD: torch.Tensor) -> torch.Tensor:
        storage_SHLD[:, :, : states_RHTD.shape[2]].index_copy_(
            0, self.slots, states_RHTD[self.prompts].to(storage_SHLD.dtype)
        )
        return states_RHTD

    def _write_tokens(self, storage_SHLD: torch.Tensor, states_RH1D: torch.Tensor) -> torch.Tensor:
        rows, heads = states_RH1D.shape[:2]
        if heads not in self.places:
            row_heads_RH = torch.arange(rows * heads, device=storage_SHLD.device).view(rows, heads)
            self.places[heads] = (row_heads_RH * self.length + self.positions_R[:, None]).flatten()
        flat = storage_SHLD.view(-1, storage_SHLD.shape[-1])
        flat.index_copy_(
            0, self.places[heads], states_RH1D.reshape(rows * heads, -1).to(storage_SHLD.dtype)
        )
        return storage_SHLD[:rows, :, : self.longest]


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one new token per row over its slot; a transformers attention function.

    Query heads that share a key head form one matrix product, so keys are neither repeated nor
    copied. On a CPU, with six query heads per key head and 512 positions, it takes 1/17 of the time
    of `scaled_dot_product_attention` with a mask.

    Args:
        query: [R, H * G, 1, D].
        key: [R, H, L, D], the first positions of the slots, and `value` likewise.
        attention_mask: [R, 1 or H, 1, L], zero up to the row's own position and minus infinity
            after it.
        scaling: Factor of the scores; None: one over the square root of D.
        sliding_window: Positions that a token sees, including its own; None: all.

    Returns:
        [R, 1, H * G, D], and None for the weights.

    Raises:
        ConfigError: The model needs an attention feature that is not implemented here.
    """
    wanted = [name for name in WITHOUT if options.get(name) is not None]
    if wanted or attention_mask is None:
        raise ConfigError(
            f"{type(module).__name__} needs {', '.join(wanted) or 'its own mask'} in attention, "
            "which rollout=hf lacks: set rollout=vllm."
        )
    rows, heads, length, channels = key.shape
    if sliding_window is not None and sliding_window < length:
        attention_mask = attention_mask + out_of_window(attention_mask, window=sliding_window)
    # The batch axes of the matrix products are row and key head; slots are contiguous, so these are
    # views.
    bias = attention_mask.expand(rows, heads, 1, length).reshape(rows * heads, 1, length)
    query = query.reshape(rows * heads, -1, channels).to(key.dtype)
    attended = attend_rounded if key.dtype in HALVES else attend_exactly
    result = attended(
        query, key.flatten(0, 1), value.flatten(0, 1), bias, scaling or channels**-0.5
    )
    return result.view(rows, 1, -1, value.shape[-1]), None


def attend_exactly(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Batched `softmax(query @ key.T * scaling + bias) @ value` in float32 or wider."""
    return torch.bmm(
        torch.baddbmm(bias.to(query.dtype), query, key.transpose(1, 2), alpha=scaling).softmax(-1),
        value,
    )


def attend_rounded(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float
) -> torch.Tensor:
    """The same in 16 bits, rounded where scaled_dot_product_attention rounds in training.

    Follows FlashAttention (arXiv 2205.14135): scores are sums in float32, and weights are rounded
    before the division by their sum. Log-probs of the shipped model then differ from those of
    training by 1.5e-3 in the mean, as much as those of training differ between micro-batch sizes.
    With rounded scores and divided weights they differed by 5.7e-3.
    """
    with torch.autocast(query.device.type, enabled=False):
        scores = wide_product(query, key.transpose(1, 2)).mul_(scaling).add_(bias)
        weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        return (wide_product(weights.to(value.dtype), value) / weights.sum(-1, keepdim=True)).to(
            value.dtype
        )


def out_of_window(bias: torch.Tensor, *, window: int) -> torch.Tensor:
    """Bias [R, 1 or H, 1, L] that masks positions `window` or more before a row's own.

    `bias` masks the positions after it.
    """
    own = (bias == 0).sum(-1, keepdim=True) - 1
    distant = torch.arange(bias.shape[-1], device=bias.device) <= own - window
    return torch.zeros_like(bias).masked_fill_(distant, -torch.inf)


@contextmanager
def slot_attention(causal_lm: Any) -> Iterator[None]:
    """Makes the model use `attend`; scoring and training keep the model's own attention
    function.
    """
    config = causal_lm.config.get_text_config()
    own = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = own


AttentionInterface.register(ATTENTION, attend)
