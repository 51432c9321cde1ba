"""Size of parquet rows after unpacking, measured on dictionary-encoded texts.

Parquet stores a recurring text once, in a dictionary, and pyarrow can keep that form
(`read_dictionary`): a few bytes per value. So a small file whose rows unpack to gigabytes is
detected before anything is unpacked.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, parquet

BYTES_OF_A_VALUE = 8  # of a number, or of a text's offset


def text_columns(metadata: parquet.FileMetaData, names: Collection[str]) -> list[str]:
    """Paths of texts in the columns `names`, including nested ones, for `read_dictionary`."""
    schema = metadata.schema
    columns = [schema.column(number) for number in range(len(schema))]
    return [
        column.path
        for column in columns
        if column.path.split(".")[0] in names
        and column.physical_type == "BYTE_ARRAY"
        and column.logical_type.type in ("STRING", "NONE")
    ]


def unpacked_bytes(batch: pyarrow.RecordBatch) -> NDArray[np.int64]:
    """Unpacked size of each row of `batch`, in bytes [rows]."""
    return sum((_sizes(column) for column in batch.columns), start=np.zeros(len(batch), np.int64))


def _sizes(array: Any) -> NDArray[np.int64]:
    """Bytes of each value."""
    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        entries = _sizes(array.dictionary)
        places = np.asarray(compute.fill_null(array.indices, 0).cast(pyarrow.int64()))
        sizes = entries[places] if len(entries) else np.zeros(len(array), np.int64)
        return np.where(np.asarray(array.is_null()), 0, sizes) + BYTES_OF_A_VALUE
    if pyarrow.types.is_struct(kind):
        return sum(
            (_sizes(array.field(number)) for number in range(kind.num_fields)),
            start=np.zeros(len(array), np.int64),
        )
    if (
        pyarrow.types.is_list(kind)
        or pyarrow.types.is_large_list(kind)
        or pyarrow.types.is_map(kind)
    ):
        inner = [array.keys, array.items] if pyarrow.types.is_map(kind) else [array.values]
        offsets = np.asarray(array.offsets).astype(np.int64)
        sums = np.concatenate([[0], np.cumsum(sum(_sizes(part) for part in inner))])
        return sums[offsets[1:]] - sums[offsets[:-1]] + BYTES_OF_A_VALUE
    if (
        pyarrow.types.is_string(kind)
        or pyarrow.types.is_binary(kind)
        or pyarrow.types.is_large_string(kind)
    ):
        return (
            np.asarray(compute.fill_null(compute.binary_length(array), 0)).astype(np.int64)
            + BYTES_OF_A_VALUE
        )
    return np.full(len(array), BYTES_OF_A_VALUE, np.int64)
