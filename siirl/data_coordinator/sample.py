"""Samples: single unpadded rows of a batch, ready for transport, and their metadata for the
coordinator.

A row owns its numpy arrays: pickling a view would pickle the whole batch with every row. bfloat16
columns become float32, because numpy has no bfloat16.
"""

# B trajectory, T response token, S prompt and response token

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorStack, TensorDict

from siirl.data_coordinator.protocol.batch import extents_of
from siirl.data_coordinator.protocol.batch_columns import Layout, column
from siirl.data_coordinator.protocol.padding import RAGGED, Extent, row_extents
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import ConfigError, InvariantError

__all__ = ["Dict2Samples", "Sample", "SampleInfo", "Samples2Dict", "row_infos"]


@dataclass(frozen=True)
class Places:
    """Position of a ragged column's rows along axis 1 of the padded column."""

    start_B: NDArray[np.int64]
    length_B: NDArray[np.int64]
    width: int


@dataclass
class Sample:
    """One row: unpadded numpy arrays, plain numbers and strings by column."""

    columns: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    @property
    def uid(self) -> str:
        """The sample's unique id; KeyError if it has none."""
        return str(self.columns["uid"])

    def info(self, *, node_id: str | None = None) -> SampleInfo:
        """The metadata of this sample, held on machine `node_id`."""
        extent = _sample_extent(self)
        plain = {name: _plain(value) for name, value in self.columns.items() if np.ndim(value) == 0}
        return SampleInfo(
            sum_tokens=extent.prompt + extent.tokens,
            prompt_length=extent.prompt,
            response_length=extent.tokens,
            uid=self.uid,
            node_id=node_id,
            dict_info=plain,
        )


def row_infos(
    batch: TensorDict, *, node_id: str | None = None, flops_B: Sequence[float] | None = None
) -> list[SampleInfo]:
    """The metadata of each row, without splitting the batch.

    Args:
        batch: Rows with a `uid` each.
        node_id: The machine that holds them.
        flops_B: Work of a training pass over each row, if known.
    """
    extents = extents_of(batch)
    fixed, of_layout = 0, dict.fromkeys(RAGGED, 0)
    plain: dict[str, list[Any]] = {}
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor):
            plain[name] = list(value.tolist())
            continue
        layout = column(name).layout
        if value.ndim == 1:
            plain[name] = value.tolist()
        if layout in RAGGED:
            of_layout[layout] += value.element_size() * math.prod(value.shape[2:])
        else:
            fixed += value.element_size() * math.prod(value.shape[1:])
    infos = []
    for row, extent in enumerate(extents):
        ragged = sum(extent.width(layout) * size for layout, size in of_layout.items())
        info = SampleInfo(
            sum_tokens=extent.prompt + extent.tokens,
            prompt_length=extent.prompt,
            response_length=extent.tokens,
            uid=str(plain["uid"][row]),
            node_id=node_id,
            dict_info={name: values[row] for name, values in plain.items()},
            size=fixed + ragged,
            flops=0.0 if flops_B is None else float(flops_B[row]),
        )
        infos.append(info)
    return infos


def Dict2Samples(batch: TensorDict) -> list[Sample]:
    """Split a batch into rows without padding; each row owns its memory."""
    rows = batch.batch_size[0]
    arrays, texts = _split_columns(batch)
    extents = row_extents(
        {name: array.shape for name, array in arrays.items()},
        response_mask_BT=arrays.get("response_mask"),
        attention_mask_BS=arrays.get("attention_mask"),
    )
    padded = Extent.of_shapes({name: array.shape for name, array in arrays.items()})
    samples = [Sample({name: texts[name][row] for name in texts}) for row in range(rows)]
    for name, array in arrays.items():
        layout = column(name).layout
        for row, sample in enumerate(samples):
            inside = (
                array[row, padded.place(layout, extents[row])] if layout in RAGGED else array[row]
            )
            sample.columns[name] = inside.copy()
    return samples


def Samples2Dict(samples: Sequence[Sample]) -> TensorDict:
    """Combine rows into a batch, padded to the longest row; without rows it has no columns.

    Raises:
        InvariantError: Rows with different columns, or arrays that do not match each other or their
            layout.
        ConfigError: A value that does not fit its column's dtype.
    """
    if not samples:
        return TensorDict({}, batch_size=[0])
    _check_same_columns(samples)
    values = {name: [sample.columns[name] for sample in samples] for name in samples[0].columns}
    places = _places(values)
    collected: dict[str, Any] = {}
    for name, rows in values.items():
        layout = column(name).layout
        if isinstance(rows[0], str):
            collected[name] = NonTensorStack(*rows)
        elif layout in RAGGED:
            collected[name] = _pad(name, rows, places[layout])
        else:
            collected[name] = _stack(name, rows)
    return TensorDict(collected, batch_size=[len(samples)])


def _split_columns(batch: TensorDict) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
    """Tensor columns as arrays that share the batch's memory, and columns of strings."""
    arrays: dict[str, NDArray[Any]] = {}
    texts: dict[str, list[str]] = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            tensor = value.detach().cpu()
            arrays[name] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
        else:
            texts[name] = list(value.tolist())
    return arrays, texts


def _sample_extent(sample: Sample) -> Extent:
    shapes = {name: (1, *np.shape(value)) for name, value in sample.columns.items()}
    return Extent.of_shapes(shapes)


def _check_same_columns(samples: Sequence[Sample]) -> None:
    names = samples[0].columns.keys()
    for sample in samples:
        if sample.columns.keys() != names:
            differing = sorted(sample.columns.keys() ^ names)
            raise InvariantError(
                f"Sample {sample.columns.get('uid')!r} and the first of its batch differ in the "
                f"columns {differing}."
            )


def _places(values: Mapping[str, Sequence[Any]]) -> dict[Layout, Places]:
    """Position of the rows of each ragged layout; prompts end where responses start.

    Raises:
        InvariantError: Two columns of one layout have rows of different length.
    """
    lengths: dict[Layout, NDArray[np.int64]] = {}
    for name, rows in values.items():
        layout = column(name).layout
        if layout not in RAGGED or layout is Layout.SEQUENCE:
            continue
        found_B = np.array([len(row) for row in rows])
        if not np.array_equal(lengths.setdefault(layout, found_B), found_B):
            row = int((lengths[layout] != found_B).argmax())
            raise InvariantError(
                f"Columns along the axis {layout.value!r} differ in width: in row {row} {name!r} "
                f"has {found_B[row]}, and another has {lengths[layout][row]}. All belong to the "
                "same rows."
            )
    nothing_B = np.zeros(len(next(iter(values.values()))), np.int64)
    prompt_B = lengths.get(Layout.PROMPT, nothing_B)
    tokens_B = lengths.get(Layout.TOKEN, nothing_B)
    places = {
        layout: Places(start_B=nothing_B, length_B=length_B, width=int(length_B.max()))
        for layout, length_B in lengths.items()
    }
    before_B, most = prompt_B.max() - prompt_B, int(prompt_B.max() + tokens_B.max())
    if Layout.PROMPT in places:
        places[Layout.PROMPT] = Places(
            start_B=before_B, length_B=prompt_B, width=int(prompt_B.max())
        )
    return {
        **places,
        Layout.SEQUENCE: Places(start_B=before_B, length_B=prompt_B + tokens_B, width=most),
    }


def _pad(name: str, values: Sequence[Any], places: Places) -> torch.Tensor:
    """Write each row directly to its place, without a second copy of large rows."""
    entry, arrays = column(name), [np.asarray(value) for value in values]
    given = {array.dtype for array in arrays}
    dtypes = {entry.array(np.zeros(0, dtype), name=name).dtype for dtype in given}
    inner = arrays[0].shape[1:]
    padded = np.zeros((len(arrays), places.width, *inner), dtype=np.result_type(*dtypes))
    for row, (array, start, length) in enumerate(
        zip(arrays, places.start_B.tolist(), places.length_B.tolist(), strict=True)
    ):
        if array.shape != (length, *inner):
            raise InvariantError(
                f"Row {row} of column {name!r} ({entry.axes}) has the shape {array.shape}, not "
                f"{(length, *inner)}."
            )
        padded[row, start : start + length] = array
    return torch.from_numpy(padded)


def _stack(name: str, values: Sequence[Any]) -> torch.Tensor:
    arrays = [_with_torch_dtype(column(name).array(value, name=name)) for value in values]
    if arrays[0].dtype == object:
        raise ConfigError(
            f"Column {name!r} has a {type(values[0]).__name__} in each row. Columns that pass "
            "between processes have numbers, arrays or strings: encode it, for example with "
            "json.dumps."
        )
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InvariantError(
            f"Rows of column {name!r} differ in shape: {sorted(shapes)}. "
            "If it runs along tokens or chunks, register it with "
            "siirl.data_coordinator.protocol.batch_columns.register_column."
        )
    return torch.from_numpy(np.stack(arrays))


def _with_torch_dtype(array: NDArray[Any]) -> NDArray[Any]:
    """Convert float64, the type of Python floats, to float32."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray | np.generic) else value
