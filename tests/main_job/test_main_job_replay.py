"""An episode of a real run is simulated again, and ends as it did."""

from pathlib import Path

import imageio_ffmpeg
import pytest

from siirl.replay import main
from siirl.reporting.recorder import VIDEOS_FOLDER, read_index

JOB = (
    *(
        "env=metaworld",
        "env.tasks=[drawer-open]",
        "env.max_episode_steps=20",
        "reward=success",
        "actor_rollout_ref.model.path=null",
    ),
    *("cluster=local", "trainer.total_steps=1", "trainer.record_episodes=1"),
)


@pytest.mark.slow  # a whole run, and a simulator
def test_what_a_run_recorded_is_played_back_with_every_frame(start_run, tmp_path: Path) -> None:
    """With new weights no drawer opens within 20 steps: 21 frames, that of the reset included."""
    run = start_run(*JOB)
    assert run.wait() == 0, run.text
    (row,) = read_index(run.folders[0] / VIDEOS_FOLDER)
    assert (row["outcome"], row["environment_steps"]) == ("fail", 20)
    video = tmp_path / "again.mp4"
    assert main([str(run.folders[0]), row["uid"], "--size", "128", "--output", str(video)]) == 0
    reader = imageio_ffmpeg.read_frames(str(video))
    next(reader)
    assert sum(1 for _ in reader) == 21
