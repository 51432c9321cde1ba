"""Numbers of a run on stand-ins carry a notice: in the spec, in every line of metrics, in every
frame of a video, and in the report.
"""

from pathlib import Path

import numpy as np
import pytest

from envs.base import Frames
from envs.libero.assets import SHORT_NOTICE
from envs.libero.libero_env import LiberoEnv
from siirl.reporting.jsonl import read_rows
from siirl.reporting.metric_writers import METRICS_FILE, MetricWriters, RunDescription
from siirl.reporting.recorder import VideoRecorder, VideoSample, annotate, read_index
from siirl.reporting.report_page import write_report

FRAMES = Frames(np.zeros((2, 64, 64, 3), np.uint8), (0, 8))


def sample(notice: str) -> VideoSample:
    return VideoSample(
        "a",
        task="push",
        instruction="push",
        kind="val",
        step=0,
        seed=1,
        success=True,
        notice=notice,
    )


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
def test_spec_on_stand_ins_has_a_notice_with_the_word() -> None:
    assert (
        LiberoEnv(assets="stand_in").spec.notice
        == SHORT_NOTICE
        == "stand-in assets: not LIBERO scores"
    )


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
def test_states_that_training_and_evaluation_share_are_noted_beside_results() -> None:
    notice = LiberoEnv(assets="stand_in", states="all").spec.notice
    assert (
        notice
        == f"{SHORT_NOTICE}; env.states=all: training and evaluation start from the same initial states"
    )


def test_every_line_of_metrics_and_the_report_carry_the_notice(tmp_path: Path) -> None:
    with MetricWriters([], RunDescription(tmp_path, total_steps=2, notice=SHORT_NOTICE)) as writers:
        for step in (1, 2):
            writers.write(step=step, metrics={"rollout/success_rate": 0.5})
    assert [row["notice"] for row in read_rows(tmp_path / METRICS_FILE)] == [SHORT_NOTICE] * 2
    assert write_report(tmp_path).read_text().count(f"<p class=notice>{SHORT_NOTICE}</p>") == 1


def test_run_without_a_notice_has_none(tmp_path: Path) -> None:
    with MetricWriters([], RunDescription(tmp_path, total_steps=1)) as writers:
        writers.write(step=1, metrics={"rollout/success_rate": 0.5})
    [row] = read_rows(tmp_path / METRICS_FILE)
    assert "notice" not in row
    assert "<p class=notice>" not in write_report(tmp_path).read_text()


def test_every_frame_of_a_video_has_a_line_more() -> None:
    plain, told = (annotate(FRAMES, sample(notice)) for notice in ("", SHORT_NOTICE))
    assert told.shape[1] - plain.shape[1] == 20  # pixels: a line of text
    strip = told[:, : told.shape[1] - 256].astype(int)
    orange = (strip[..., 0] > 200) & (strip[..., 2] < 100)
    assert orange.any(axis=(1, 2)).all()


def test_index_of_videos_carries_the_notice(tmp_path: Path) -> None:
    with VideoRecorder(tmp_path) as videos:
        videos.record(FRAMES, sample(SHORT_NOTICE))
    assert [row["notice"] for row in read_index(tmp_path)] == [SHORT_NOTICE]
