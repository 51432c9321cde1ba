"""Samples: rows of a batch on their own, unpadded, ready to travel; and what the coordinator is told of them.

A row holds numpy arrays of its own memory. A view would pickle the whole batch with every row. Columns in bfloat16, which numpy
lacks, come back as float32.
"""

# B trajectory, T response token, S prompt and response token

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorStack, TensorDict

from siirl.data_coordinator.protocol.columns import column
from siirl.data_coordinator.protocol.padding import RAGGED, Extent, row_extents
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import InvariantError

__all__ = ["Dict2Samples", "Sample", "SampleInfo", "Samples2Dict"]


@dataclass
class Sample:
    """One row: unpadded numpy arrays, plain numbers and strings by column."""

    columns: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    @property
    def uid(self) -> str:
        """The sample's unique id; KeyError where it has none."""
        return str(self.columns["uid"])

    def info(self, *, node_id: str | None = None) -> SampleInfo:
        """The metadata of this sample, which is held on machine `node_id`."""
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


def Dict2Samples(batch: TensorDict) -> list[Sample]:
    """Take a batch apart into rows, without their padding and with memory of their own."""
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
            inside = array[row, padded.place(layout, extents[row])] if layout in RAGGED else array[row]
            sample.columns[name] = inside.copy()
    return samples


def Samples2Dict(samples: Sequence[Sample]) -> TensorDict:
    """Put rows together into a batch, padded to its longest row; without rows there are no columns either.

    Raises:
        InvariantError: Rows with different columns, or arrays that fit neither each other nor their layout.
        ConfigError: A value that does not fit its column's dtype.
    """
    if not samples:
        return TensorDict({}, batch_size=[0])
    _check_same_columns(samples)
    extents = [_sample_extent(sample) for sample in samples]
    widest = Extent.widest(extents)
    collected: dict[str, Any] = {}
    for name in samples[0].columns:
        values = [sample.columns[name] for sample in samples]
        if isinstance(values[0], str):
            collected[name] = NonTensorStack(*values)
        elif column(name).layout in RAGGED:
            collected[name] = _pad(name, values, extents, widest)
        else:
            collected[name] = _stack(name, values)
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
            raise InvariantError(f"Sample {sample.columns.get('uid')!r} and the first of its batch differ in the columns {differing}.")


def _pad(name: str, values: Sequence[Any], extents: Sequence[Extent], widest: Extent) -> torch.Tensor:
    entry = column(name)
    first = entry.array(values[0], name=name)
    padded = np.zeros((len(values), widest.width(entry.layout), *first.shape[1:]), dtype=first.dtype)
    for row, value in enumerate(values):
        array = entry.array(value, name=name)
        place = widest.place(entry.layout, extents[row])
        if array.shape != (place.stop - place.start, *first.shape[1:]):
            expected = (place.stop - place.start, *first.shape[1:])
            raise InvariantError(f"Row {row} of column {name!r} ({entry.axes}) has the shape {array.shape}, not {expected}.")
        padded[row, place] = array
    return torch.from_numpy(padded)


def _stack(name: str, values: Sequence[Any]) -> torch.Tensor:
    arrays = [_with_torch_dtype(column(name).array(value, name=name)) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InvariantError(
            f"Rows of column {name!r} differ in shape: {sorted(shapes)}. "
            "If it runs along tokens or chunks, say so with siirl.data_coordinator.protocol.columns.register_column."
        )
    return torch.from_numpy(np.stack(arrays))


def _with_torch_dtype(array: NDArray[Any]) -> NDArray[Any]:
    """Python floats arrive as float64; a batch keeps float32."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray | np.generic) else value
