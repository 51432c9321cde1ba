"""The file of a checkpoint's state: plain data, tensors and numpy arrays, and no code.

`read_state` reads exactly what `write_state` accepts. It refuses everything else, because
unpickling arbitrary objects can run arbitrary code.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from envs.archives import check_stored
from siirl.dag_worker.manifest import TAKE_EARLIER
from siirl.engine.training.shard_files import UNREADABLE
from siirl.errors import CheckpointError

# Classes of numpy arrays and dtypes. Everything else that is not plain data is refused.
_NUMPY_GLOBALS: list[Any] = [
    np.zeros(0).__reduce__()[0],
    np.float64(0).__reduce__()[0],
    np.ndarray,
    np.dtype,
    bytes,  # of an array without entries
    *(
        type(np.dtype(kind))
        for kind in ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "U")
    ),
]


def write_state(file: Path, state: dict[str, Any]) -> None:
    """Write `state`.

    Raises:
        CheckpointError: It holds data that `read_state` would refuse.
        OSError: The disk is full.
    """
    _require_plain(state, "state")
    stream = io.BytesIO()  # torch.save to a file reports a full disk as RuntimeError
    torch.save(state, stream)
    file.write_bytes(stream.getvalue())


def _require_plain(thing: Any, place: str) -> None:
    """Raise CheckpointError for data that `read_state` would refuse, before it is saved."""
    if type(thing) is dict:
        for key, value in thing.items():
            _require_plain(key, f"a key of {place}")
            _require_plain(value, f"{place}[{key!r}]")
    elif type(thing) in (list, tuple, set):
        for number, value in enumerate(thing):
            _require_plain(value, f"{place}[{number}]")
    elif isinstance(thing, np.ndarray | np.generic) and thing.dtype.kind in "biufU":
        return
    elif type(thing) not in (type(None), bool, int, float, str, bytes, torch.Tensor):
        raise CheckpointError(
            f"{place} cannot be saved. Expected: plain data, tensors, numpy arrays. Found: "
            f"{type(thing).__qualname__}."
        )


def read_state(file: Path) -> dict[str, Any]:
    """Read a file of `write_state`.

    Raises:
        CheckpointError: The file is damaged, or holds something else.
    """
    try:
        check_stored(file)
        with torch.serialization.safe_globals(_NUMPY_GLOBALS):
            state = torch.load(file, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise CheckpointError(
            f"{file} cannot be read. Expected: plain data. Found: {error}. {TAKE_EARLIER}"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(
            f"{file} cannot be read. Expected: a dict. Found: {type(state).__name__}. "
            f"{TAKE_EARLIER}"
        )
    return state
