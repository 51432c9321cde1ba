"""The archive of demonstrations' clips: read, or refused with its name and a remedy."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siirl.engine.reward_manager.demonstration_clips import load_demonstration_clips

CLIP = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)


def written(folder: Path, **clips: np.ndarray) -> Path:
    file = folder / "clips.npz"
    np.savez(file, **{name.replace("__", "/"): clip for name, clip in clips.items()})
    return file


def test_clips_are_read_by_task(tmp_path: Path) -> None:
    file = written(tmp_path, open__0=CLIP, open__1=CLIP + 1, close__0=CLIP)
    clips = load_demonstration_clips(str(file))
    assert {task: len(found) for task, found in clips.items()} == {"open": 2, "close": 1}
    assert np.array_equal(clips["open"][1], CLIP + 1)


@given(position=st.integers(0, 10**4), byte=st.integers(0, 255), cut=st.booleans())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_archive_is_read_or_refused_by_name(
    tmp_path: Path, position: int, byte: int, cut: bool
) -> None:
    file = written(tmp_path, open__0=CLIP)
    content = bytearray(file.read_bytes())
    position %= len(content)
    content[position] = byte
    file.write_bytes(content[:position] if cut else content)
    try:
        load_demonstration_clips(str(file))
    except ValueError as error:
        assert str(file) in str(error)


@pytest.mark.parametrize(
    "clip",
    [
        CLIP.astype(np.float32),
        CLIP[0],
        CLIP[..., :1],
        CLIP[:0],
        np.array([[None]], object),
    ],
)
def test_an_entry_that_is_not_a_clip_is_refused(tmp_path: Path, clip: np.ndarray) -> None:
    file = written(tmp_path, open__0=clip)
    with pytest.raises(ValueError, match=r"clips\.npz is damaged.*warm-start --clips FILE"):
        load_demonstration_clips(str(file))
