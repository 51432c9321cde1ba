"""Locates a row's values in a padded batch: lengths from the masks, slices for every layout.

Left out: moving data (`siirl.data_coordinator.sample` for rows, `protocol.batch` for whole
batches).
"""

# B trajectory, T response token, C chunk, P prompt token

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from siirl.data_coordinator.protocol.batch_columns import Layout, column
from siirl.errors import InvariantError

Shapes = Mapping[str, tuple[int, ...]]
"""Shape of each tensor column, row axis included."""


@dataclass(frozen=True)
class Extent:
    """Size of the ragged axes, of one row or of a padded batch."""

    tokens: int = 0
    chunks: int = 0
    prompt: int = 0
    words: int = 0
    patches: int = 0

    @classmethod
    def of_shapes(cls, shapes: Shapes) -> "Extent":
        """Read the sizes from the columns; all columns of one layout must agree.

        Raises:
            InvariantError: Two columns disagree.
        """
        return cls(
            tokens=_common_width(shapes, Layout.TOKEN),
            chunks=_common_width(shapes, Layout.CHUNK),
            prompt=_common_width(shapes, Layout.PROMPT),
            words=_common_width(shapes, Layout.WORDS),
            patches=_common_width(shapes, Layout.PICTURES),
        )

    @classmethod
    def widest(cls, extents: "list[Extent]") -> "Extent":
        """The smallest extent into which all fit."""
        return cls(
            tokens=max((extent.tokens for extent in extents), default=0),
            chunks=max((extent.chunks for extent in extents), default=0),
            prompt=max((extent.prompt for extent in extents), default=0),
            words=max((extent.words for extent in extents), default=0),
            patches=max((extent.patches for extent in extents), default=0),
        )

    def width(self, layout: Layout) -> int:
        """Size of axis 1 of a column of this layout."""
        return {
            Layout.TOKEN: self.tokens,
            Layout.CHUNK: self.chunks,
            Layout.PROMPT: self.prompt,
            Layout.SEQUENCE: self.prompt + self.tokens,
            Layout.WORDS: self.words,
            Layout.PICTURES: self.patches,
        }[layout]

    def place(self, layout: Layout, inner: "Extent") -> slice:
        """Position on axis 1 of this extent of a column with the smaller extent `inner`.

        Prompts end where responses start.
        """
        start = self.prompt - inner.prompt if layout in (Layout.PROMPT, Layout.SEQUENCE) else 0
        return slice(start, start + inner.width(layout))


RAGGED = frozenset(Layout) - {Layout.FIXED, Layout.TEXT}


def row_extents(
    shapes: Shapes,
    *,
    response_mask_BT: NDArray[np.generic] | None,
    attention_mask_BS: NDArray[np.generic] | None,
) -> list[Extent]:
    """The unpadded extent of each row.

    The response ends with its last token in the attention mask, or in the response mask if a batch
    has no attention mask. A robot's response has none; its length is then rounded up to a whole
    chunk. Without masks nothing is cut.
    """
    padded = Extent.of_shapes(shapes)
    rows = next(iter(shapes.values()))[0] if shapes else 0
    tokens_B, prompt_B = np.full(rows, padded.tokens), np.full(rows, padded.prompt)
    if attention_mask_BS is not None and padded.prompt:
        prompt_B = _length_from_last(attention_mask_BS[:, : padded.prompt][:, ::-1])
        tokens_B = _length_from_last(attention_mask_BS[:, padded.prompt :])
    elif response_mask_BT is not None:
        tokens_B = _length_from_last(response_mask_BT)
    chunks_B = np.full(rows, padded.chunks)
    if padded.chunks and padded.tokens:
        tokens_per_chunk = _tokens_per_chunk(padded)
        chunks_B = np.maximum(1, -(-tokens_B // tokens_per_chunk))
        tokens_B = chunks_B * tokens_per_chunk
    return [
        Extent(int(t), int(c), int(p), padded.words, padded.patches)
        for t, c, p in zip(tokens_B, chunks_B, prompt_B, strict=True)
    ]


def _length_from_last(mask_BT: NDArray[np.generic]) -> NDArray[np.int64]:
    """Position of the last nonzero entry of each row, plus one."""
    positions_T = np.arange(1, mask_BT.shape[1] + 1)
    lengths_B: NDArray[np.int64] = np.where(mask_BT != 0, positions_T, 0).max(axis=1, initial=0)
    return lengths_B


def _tokens_per_chunk(padded: Extent) -> int:
    if padded.tokens % padded.chunks:
        raise InvariantError(
            f"{padded.tokens} response tokens are not a multiple of {padded.chunks} chunks, but "
            "all chunks have the same length."
        )
    return padded.tokens // padded.chunks


def _common_width(shapes: Shapes, layout: Layout) -> int:
    widths = {
        name: shape[1] if len(shape) > 1 else 0
        for name, shape in shapes.items()
        if column(name).layout is layout
    }
    if len(set(widths.values())) > 1:
        raise InvariantError(
            f"Columns along the axis {layout.value!r} differ in width: {widths}. All belong to the "
            "same rows."
        )
    return next(iter(widths.values()), 0)
