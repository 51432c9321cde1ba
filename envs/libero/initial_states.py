"""Reads the benchmark's 50 initial states per task without torch, and splits them.

The files are written by `torch.save`: a zip archive with one pickled NumPy array. Only arrays are
unpickled, so a file cannot run code, and the size is bounded, so a small file cannot fill the
memory.
"""

import io
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envs.archives import MEBIBYTE, read_entry
from envs.seeds import FIRST_TRAINING_SEED

States = Literal["split", "all"]
STATES = 50  # per task
HELD_OUT_EVERY = 5  # states 4, 9, ..., 49 are for evaluation
# of a file's content and of its array; the benchmark's largest file has 50 kB
MOST_BYTES = 16 * MEBIBYTE
PLACEMENTS = (
    "fixtures of initial state i stand as in episode i of the official loop (env.seed(0), one "
    "reset per episode)"
)
# errors of unpickling damaged bytes, from Python's documentation and from trials
NO_PICKLE = (
    *(pickle.UnpicklingError, EOFError, AttributeError, ImportError),
    *(LookupError, MemoryError, OverflowError, TypeError, ValueError),
)
_ARRAY_PARTS = {  # all that an array's pickle may name; NumPy moved its modules in version 2
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def read_initial_states(path: Path) -> NDArray[np.float64]:
    """Read initial states [50, 1 + nq + nv]: MuJoCo's time, qpos and qvel.

    Raises:
        ValueError: The file is missing, damaged or holds no such array.
    """
    try:
        states = _ArrayUnpickler(
            io.BytesIO(read_entry(path, ending="/data.pkl", most_bytes=MOST_BYTES))
        ).load()
    except NO_PICKLE as error:
        raise ValueError(
            f"The initial states {path} cannot be read ({error}); reinstall hf-libero==0.1.4."
        ) from error
    if not (isinstance(states, np.ndarray) and states.ndim == 2 and states.dtype.kind == "f"):
        raise ValueError(
            f"{path} does not hold an array of initial states, but {type(states).__name__}."
        )
    if states.nbytes > MOST_BYTES:
        raise ValueError(
            f"The initial states {path} are an array of {states.nbytes} bytes; the limit is "
            f"{MOST_BYTES}."
        )
    if not np.isfinite(states).all():
        raise ValueError(f"The initial states {path} are not finite; reinstall hf-libero==0.1.4.")
    return states.astype(np.float64)


def held_out(count: int) -> tuple[int, ...]:
    """Return the numbers of the held-out states among `count` states."""
    return tuple(range(HELD_OUT_EVERY - 1, count, HELD_OUT_EVERY))


def state_number(seed: int, *, count: int, states: States) -> int:
    """Return the number of the initial state for `seed`.

    `all` (the published protocol): seed k starts from state k modulo `count`, for training and
    evaluation. `split`: training seeds (1,000,000 and above) start from four fifths of the states,
    evaluation seeds from the others, so that the two never meet.
    """
    if states == "all":
        return seed % count
    evaluation = held_out(count)
    if seed < FIRST_TRAINING_SEED:
        return evaluation[seed % len(evaluation)]
    training = [number for number in range(count) if number not in evaluation]
    return training[seed % len(training)]


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, but only arrays are read")
        return super().find_class(module, name)
