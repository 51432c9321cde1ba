"""What a checkpoint's state file accepts, it gives back."""

from pathlib import Path

import numpy as np
import pytest

from siirl.dag_worker.plain_state import read_state, write_state


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (2, 3)])
@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float16, np.float32, np.float64])
def test_an_array_is_restored_with_or_without_entries(
    shape: tuple[int, ...], dtype: type, tmp_path: Path
) -> None:
    array = np.ones(shape, dtype)
    write_state(tmp_path / "state.pt", {"array": array})
    found = read_state(tmp_path / "state.pt")["array"]
    assert found.dtype == dtype and np.array_equal(found, array)
