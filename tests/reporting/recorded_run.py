"""A run folder with a video and a text rollout of step 1, as the workers leave them."""

from pathlib import Path

import numpy as np

from envs.base import Frames
from siirl.engine.rollout.workflow import Trajectory
from siirl.reporting.metric_writers import MetricWriters, RunDescription
from siirl.reporting.recorder import VIDEOS_FOLDER, VideoRecorder, VideoSample
from siirl.reporting.rollout_files import ALL, ROLLOUTS_FOLDER, RolloutFiles

BEFORE = {"val/push/successes": 1.0, "val/push/episodes": 4.0}
AFTER = {"val/push/successes": 3.0, "val/push/episodes": 4.0}


def record_video(folder: Path, *, step: int, uid: str = "a", frames: int = 70) -> None:
    images_NHWC = np.zeros((frames, 32, 32, 3), np.uint8)
    sample = VideoSample(
        *(uid, "push", "push the <puck>"), kind="val", step=step, seed=7, success=True, reward=0.25
    )
    with VideoRecorder(folder / VIDEOS_FOLDER, first_step=step) as recorder:
        recorder.record(Frames(images_NHWC, tuple(range(frames))), sample)


def record_rollout(folder: Path, *, step: int, answer: str = "3") -> None:
    row = {
        *(("uid", f"u{step}"), ("task_name", "sums"), ("index", 7), ("seed", 3)),
        *(("policy_version", 5), ("finish_step", 1), ("complete", True), ("truncated", False)),
        ("env_return", 1.0),
    }
    record = {
        "prompt": [{"role": "user", "content": "1+2="}],
        "turns": [{"role": "assistant", "content": answer}],
    }
    files = RolloutFiles(folder / ROLLOUTS_FOLDER, count=ALL, first_step=step)
    files.keep([Trajectory(row=dict(row), record=record)], kind="train", step=step)
    files.write({f"u{step}": 0.5})
    files.close()


def write_run(logger: str, folder: Path) -> None:
    """Steps 0 and 1 with recordings, written by `logger`, and an evaluation before and after."""
    description = RunDescription(
        folder,
        total_steps=1,
        project="robots",
        experiment="first",
        config={"trainer": {"seed": 11}},
        tags=("paper", "push"),
    )
    with MetricWriters([logger], description) as writers:
        writers.write(step=0, metrics=dict(BEFORE))
        record_video(folder, step=1)
        record_rollout(folder, step=1, answer="a|b <i>\n3")
        writers.write(step=1, metrics={**AFTER, "actor/lr": 0.5})
        writers.finish([BEFORE, AFTER])
