"""`siirl reward-check`: how a reward ranks a policy's failures, and what it pays idle videos."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from siirl.jobs.idle_videos import RealEpisode, idle_videos
from siirl.jobs.reward_ranking import ScoredEpisodes, ranking
from siirl.reward_check import main

REFUSED = 2
CHECK = (
    "checkpoint=assets/tiny_vla",
    "env=metaworld",
    "env.tasks=[button-press,window-open]",
    "env.max_episode_steps=60",
    "cluster=local",
    "env.num_servers=1",
    "data.train_batch_size=6",
    "actor_rollout_ref.rollout.n=3",
)


def scored(
    *, reward: list[float], left: list[float], success: list[bool] | None = None
) -> ScoredEpisodes:
    """Two groups of the same size."""
    count = len(reward)
    return ScoredEpisodes(
        task_N=np.array(["reach"] * count),
        group_N=np.repeat([7, 8], count // 2),
        success_N=np.array(success or [False] * count),
        reward_N=np.array(reward, np.float32),
        left_N=np.array(left, np.float32),
    )


def test_a_reward_that_falls_with_distance_ranks_perfectly() -> None:
    found = ranking(scored(reward=[3, 2, 1, 30, 20, 10], left=[1, 2, 3, 1, 2, 3]))
    assert found["within_groups"] == pytest.approx([1.0, 1.0, 1.0])
    assert found["ranked_groups"] == found["groups_with_failures"] == 2


def test_differences_between_groups_do_not_count_within_them() -> None:
    """The farther group has the higher rewards, and within each group the order is right."""
    found = ranking(scored(reward=[3, 2, 1, 6, 5, 4], left=[1, 2, 3, 4, 5, 6]))
    assert found["within_groups"][0] == pytest.approx(1.0)
    assert found["over_task"] < 0


def test_only_failures_are_ranked() -> None:
    success = [True, False, False, False] * 2
    found = ranking(scored(reward=[1, 0.3, 0.2, 0.1] * 2, left=[9, 1, 2, 3] * 2, success=success))
    assert (found["successes"], found["mixed_groups"]) == (2, 2)
    assert found["within_groups"][0] == pytest.approx(1.0)


def test_without_true_distances_only_groups_are_counted() -> None:
    found = ranking(scored(reward=[1, 1, 1, 3, 2, 1], left=[math.nan] * 6))
    assert found["within_groups"] is None
    assert (found["ranked_groups"], found["groups_with_failures"]) == (1, 2)


def test_idle_videos_of_a_failure() -> None:
    """A failure of four frames, with values 1 to 4, and another task's success."""
    failure = np.arange(1, 5, dtype=np.uint8)[:, None, None, None] * np.ones((2, 2, 3), np.uint8)
    success = np.full((2, 2, 2, 3), 9, np.uint8)
    found = list(
        idle_videos([RealEpisode("reach", False, failure), RealEpisode("push", True, success)])
    )
    assert {video.task for video in found} == {"reach"}
    shown = [(video.kind, video.video[:, 0, 0, 0].tolist()) for video in found]
    assert shown == [
        ("covered camera", [0, 0, 0, 0]),
        ("nothing moves", [1, 1, 1, 1]),
        ("best stop", [1, 1, 1, 1]),
        ("best stop", [1, 2, 2, 2]),
        ("best stop", [1, 2, 3, 3]),
        ("another task", [9, 9]),
    ]


def test_the_shipped_policy_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CHECK, "steps=1", f"trainer.output_dir={tmp_path}"]) == 0
    (file,) = tmp_path.glob("reward_check/*/reward_check.json")
    found = json.loads(file.read_text())
    assert (found["reward"], found["encoder"]) == ("srpo", "tiny")
    assert {task: result["episodes"] for task, result in found["tasks"].items()} == {
        "button-press": 9,
        "window-open": 9,
    }
    paid = found["idle_videos"]["button-press"]
    assert paid["covered camera"] <= paid["best failure"]
    lines = capsys.readouterr().out.splitlines()
    assert any("ranking of failures by reward=srpo reward.encoder=tiny" in line for line in lines)
    assert max(len(line) for line in lines if not line.startswith("results")) <= 80


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "No policy given"),
        (("checkpoint=assets/tiny_vla", "steps=0"), "steps=0 must be a whole number from 1"),
        ((*CHECK, "reward=success"), "gives every failure 0"),
        (("checkpoint=assets/tiny_lm", "env=math"), "compares robots' failures, but env=math is"),
        ((*CHECK, "reward.encoder=assets/tiny_lm"), "reward.encoder=assets/tiny_lm cannot be load"),
        ((*CHECK, "reward.demonstrations=README.md"), "README.md holds no clips"),
        (("checkpoint=assets/vjepa_tiny",), "does not describe a siirl policy: name the folder of"),
        (("checkpoint=README.md",), "README.md: this is a file. Give a policy folder"),
    ],
    ids=[
        *("no policy", "no step", "0/1", "text", "no encoder", "no clips", "an encoder", "a file"),
    ],
)
def test_a_job_that_cannot_be_checked_is_refused(
    words: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, f"trainer.output_dir={tmp_path}"]) == REFUSED
    assert reason in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
