"""Videos: written, read back, indexed; and failures of writing."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from envs.base import Frames
from siirl.errors import SiirlError
from siirl.reporting.recorder import VideoRecorder, VideoSample, annotate, read_index


def sample(uid: str, *, success: bool | None = False, step: int = 3) -> VideoSample:
    return VideoSample(
        uid=uid,
        task="push",
        instruction="push the puck",
        kind="train",
        step=step,
        seed=7,
        success=success,
        reward=0.25,
    )


def moving_square(count: int, size: int) -> Frames:
    """A white square that moves over black ground, one pixel per frame."""
    images = np.zeros((count, size, size, 3), np.uint8)
    for i, image in enumerate(images):
        image[i : i + 8, i : i + 8] = 255
    return Frames(images, tuple(range(0, 2 * count, 2)))


def read_video(file: Path) -> tuple[tuple[int, int], list[bytes]]:
    reader = imageio_ffmpeg.read_frames(str(file))
    size = next(reader)["size"]
    return size, list(reader)


def test_a_video_has_every_frame_and_is_enlarged(tmp_path: Path) -> None:
    with VideoRecorder(tmp_path) as recorder:
        file = recorder.record(moving_square(count=5, size=64), sample("a"))
    (width, height), frames = read_video(file)
    assert (width, len(frames)) == (256, 5)
    assert height > 256


def test_the_picture_is_that_of_the_episode(tmp_path: Path) -> None:
    with VideoRecorder(tmp_path) as recorder:
        file = recorder.record(moving_square(count=5, size=64), sample("a"))
    (width, height), frames = read_video(file)
    last = np.frombuffer(frames[-1], np.uint8).reshape(height, width, 3)[height - 256 :]
    # The square of the last frame covers pixels 4 to 12 of 64, that is 16 to 48 of 256.
    assert last[24:40, 24:40].min() > 200
    assert last[64:, 64:].max() < 30


def test_every_sample_has_a_file_of_its_own_and_failures_say_so(tmp_path: Path) -> None:
    frames = moving_square(count=2, size=64)
    with VideoRecorder(tmp_path) as recorder:
        files = [
            recorder.record(frames, sample(f"group-1/{i}", success=success))
            for i, success in enumerate((True, False, None))
        ]
    assert [file.name for file in files] == [
        "success_group-1%2F0.mp4",
        "fail_group-1%2F1.mp4",
        "unscored_group-1%2F2.mp4",
    ]
    assert all(file.is_file() for file in files)


def test_the_index_leads_from_a_video_to_its_sample(tmp_path: Path) -> None:
    with VideoRecorder(tmp_path) as recorder:
        recorder.record(moving_square(count=3, size=64), sample("a"))
    (row,) = read_index(tmp_path)
    assert row == {
        "uid": "a",
        "task": "push",
        "instruction": "push the puck",
        "kind": "train",
        "step": 3,
        "seed": 7,
        "success": False,
        "reward": 0.25,
        "outcome": "fail",
        "frames": 3,
        "environment_steps": 4,
        "video": "train/step_000003/fail_a.mp4",
    }


def test_ranks_write_indices_of_their_own_that_are_read_as_one(tmp_path: Path) -> None:
    for rank in (1, 0):
        with VideoRecorder(tmp_path, rank=rank) as recorder:
            recorder.record(moving_square(count=1, size=64), sample(f"rank-{rank}", step=rank))
    assert [row["uid"] for row in read_index(tmp_path)] == ["rank-0", "rank-1"]


def test_a_resumed_run_lists_no_video_twice(tmp_path: Path) -> None:
    for first_step in (0, 3):
        with VideoRecorder(tmp_path, first_step=first_step) as recorder:
            recorder.record(moving_square(count=1, size=64), sample("a", step=3))
    assert len(read_index(tmp_path)) == 1


def test_a_uid_is_taken_once(tmp_path: Path) -> None:
    frames = moving_square(count=1, size=64)
    with VideoRecorder(tmp_path) as recorder:
        recorder.record(frames, sample("a"))
        with pytest.raises(ValueError, match="already has a video"):
            recorder.record(frames, sample("a", success=True))


@pytest.mark.parametrize(
    "frames",
    [
        Frames(np.zeros((0, 64, 64, 3), np.uint8), ()),
        Frames(np.zeros((1, 64, 64, 3), np.float32), (0,)),  # type: ignore[arg-type]
        Frames(np.zeros((2, 64, 64, 3), np.uint8), (0,)),
    ],
    ids=["none", "float", "unequal"],
)
def test_invalid_frames_are_refused(tmp_path: Path, frames: Frames) -> None:
    with VideoRecorder(tmp_path) as recorder, pytest.raises(ValueError, match="needs uint8"):
        recorder.record(frames, sample("a"))


def test_a_video_that_cannot_be_written_is_an_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("a file where a folder is needed")
    recorder = VideoRecorder(tmp_path)
    recorder.record(moving_square(count=1, size=64), sample("a"))
    with pytest.raises(
        SiirlError, match=r"fail_a\.mp4 could not be written.*trainer\.record_episodes=0"
    ):
        recorder.close()


def test_more_videos_than_may_wait_are_all_written(tmp_path: Path) -> None:
    with VideoRecorder(tmp_path) as recorder:
        for i in range(12):
            recorder.record(moving_square(count=1, size=64), sample(str(i)))
    assert len(read_index(tmp_path)) == 12


@pytest.mark.parametrize(("words", "lines"), [(1, 1), (6, 1), (12, 2), (200, 5)])
def test_instruction_of_many_words_takes_more_lines_up_to_five(words: int, lines: int) -> None:
    """`open ` is 37 pixels wide in the strip's font, and a line 244."""
    many = VideoSample(
        uid="a", task="t", instruction="open " * words, kind="val", step=0, seed=0, success=None
    )
    pictures = annotate(Frames(np.zeros((1, 256, 256, 3), np.uint8), (0,)), many)
    assert pictures.shape[1] - 256 == 12 + 20 * (1 + lines)  # the first line is the step's


def test_odd_sizes_and_long_instructions_fit() -> None:
    long = VideoSample(
        uid="a", task="t", instruction="open " * 50, kind="val", step=0, seed=0, success=None
    )
    pictures = annotate(Frames(np.zeros((1, 301, 257, 3), np.uint8), (0,)), long)
    assert pictures.shape[2] == 256
    assert pictures.shape[1] % 2 == 0


ENCODES = """
import signal, sys
from pathlib import Path
import numpy as np
from siirl.reporting.recorder import look_for_ffmpeg, write_video
signal.signal(signal.SIGINT, lambda *_: None)  # as a command that finishes what it does
images = np.random.default_rng(0).integers(0, 256, (60, 512, 512, 3), dtype=np.uint8)
look_for_ffmpeg()  # as a recorder does when it is made
print("encodes", flush=True)
write_video(Path(sys.argv[1]), images, frames_per_second=10)
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own end would take its default
"""


def test_ctrl_c_leaves_a_video_to_be_finished(tmp_path: Path) -> None:
    """A terminal sends it to the whole group of the command."""
    file = tmp_path / "episode.mp4"
    command = [sys.executable, "-c", ENCODES, str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "encodes\n"
    while process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.02)
    assert process.returncode == 0
    assert file.stat().st_size > 0
