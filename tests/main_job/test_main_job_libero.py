"""LIBERO by its commands, on stand-in assets: two SRPO steps from the shipped weights, and an
interrupted published protocol.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from real_run import START_S

from siirl.jobs.libero_protocol import EPISODES_FILE, STATES
from siirl.reporting.recorder import VIDEOS_FOLDER, read_index
from siirl.reporting.report_page import REPORT_FILE

NOTICE = "stand-in assets: not LIBERO scores"
STAND_INS = ("env=libero", "env.assets=stand_in")
# The user's command made small: one task and short episodes for time; clips of the expert, because
# without any success SRPO has nothing to compare failures with; and every difference between
# failures counts, because 48 steps bring them hardly apart.
SMALL = (
    *(
        "pipeline=embodied_srpo",
        *STAND_INS,
        "env.tasks=[object/1]",
        "env.max_episode_steps=48",
        "env.num_servers=2",
        "env.envs_per_server=2",
    ),
    *(
        "actor_rollout_ref.model.options={instruction_length: 24}",
        "actor_rollout_ref.rollout.n=4",
        "algorithm.min_group_spread=1.0e-6",
    ),
    *(
        "trainer.total_steps=2",
        "trainer.val_episodes=1",
        "trainer.record_episodes=1",
        "trainer.record_val_episodes=1",
    ),
)
# A task that a minute of cloning solves now and then: a drawer is pushed shut, 54 steps for the
# expert.
DRAWER = (
    *STAND_INS,
    "env.suite=libero_90",
    "env.tasks=[90/0]",
    "actor_rollout_ref.model.options={instruction_length: 24, width: 64}",
)


def run(module: str, *words: str, folder: Path) -> str:
    """Output of a siirl command that must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# Ray, a warm start, a run and an evaluation: about a minute and a half of two idle cores
@pytest.mark.slow
def test_two_srpo_steps_of_the_users_command_say_stand_in_everywhere_and_leave_a_policy(
    start_run, tmp_path: Path
) -> None:
    clips = tmp_path / "clips.npz"
    run(
        "siirl.warm_start",
        *STAND_INS,
        "env.tasks=[object/1]",
        *_cloning("unused", 1, 1),
        "--clips",
        str(clips),
        folder=tmp_path,
    )
    training = start_run(*SMALL, f"reward.demonstrations={clips}")
    assert training.wait(timeout_s=2 * START_S) == 0, training.text
    (folder,) = training.folders

    rows = rows_of(folder / "metrics.jsonl")
    assert {row["notice"] for row in rows} == {NOTICE}
    steps = [row for row in rows if row["step"] > 0]
    assert [row["step"] for row in steps] == [1, 2]
    assert [row["rollout/episodes"] for row in steps] == [
        8.0,
        8.0,
    ]  # two prompts, four rollouts of each
    assert all(row["actor/updates"] > 0 and row["actor/grad_norm"] > 0 for row in steps)

    videos = read_index(folder / VIDEOS_FOLDER)
    assert {(video["kind"], video["step"]) for video in videos} >= {
        ("train", 1),
        ("train", 2),
        ("val", 0),
        ("val", 2),
    }
    assert {video["notice"] for video in videos} == {NOTICE}
    assert all((folder / VIDEOS_FOLDER / video["video"]).stat().st_size > 0 for video in videos)
    assert NOTICE in (folder / REPORT_FILE).read_text()

    printed = run(
        "siirl.evaluate",
        f"checkpoint={folder}",
        "trainer.val_episodes=1",
        f"trainer.output_dir={tmp_path / 'again'}",
        folder=tmp_path,
    )
    assert NOTICE in printed
    (result,) = (tmp_path / "again").glob("evaluation/*/evaluation.json")
    assert {
        kind: found["all"]["episodes"]
        for kind, found in json.loads(result.read_text())["success"].items()
    } == {
        "sampled": 1,
        "argmax": 1,
    }


@pytest.fixture
def drawer_policy(tmp_path: Path) -> Path:
    """A policy that shuts the drawer from some states."""
    run("siirl.warm_start", *DRAWER, *_cloning("drawer_policy", 4, 120), folder=tmp_path)
    return tmp_path / "drawer_policy"


# a warm start, and a hundred episodes of LIBERO: about two minutes of an idle core
@pytest.mark.slow
def test_published_protocol_that_is_killed_continues_and_ends_with_the_same_table(
    drawer_policy: Path, tmp_path: Path
) -> None:
    whole = _protocol(drawer_policy, tmp_path / "whole")
    assert whole.wait() == 0
    killed = _protocol(drawer_policy, tmp_path / "killed")
    deadline = time.monotonic() + 2 * START_S
    while len(_episodes(tmp_path / "killed")) < STATES // 2:
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    before = _episodes(tmp_path / "killed")
    assert STATES // 2 <= len(before) < STATES  # it was in the middle
    resumed = _protocol(
        drawer_policy, tmp_path / "resumed", f"resume={_folder(tmp_path / 'killed')}"
    )
    assert resumed.wait() == 0

    after, expected = _episodes(tmp_path / "resumed"), _episodes(tmp_path / "whole")
    assert after[: len(before)] == before
    # none is missing, and none was played twice
    assert sorted(row["state"] for row in after) == list(range(STATES))
    assert sorted(after, key=lambda row: row["state"]) == sorted(
        expected, key=lambda row: row["state"]
    )
    results = [
        json.loads((_folder(tmp_path / name) / "evaluation.json").read_text())
        for name in ("resumed", "whole")
    ]
    assert results[0]["success"] == results[1]["success"]
    assert 0 < results[0]["success"]["sampled"]["90"]["0"]["successes"] < STATES
    less = "1 of 90 tasks of 90, at most 64 steps instead of the suites' limits"
    assert [result["played"] for result in results] == [
        {"sampled": f"{less} (NOT the whole published protocol)"}
    ] * 2
    # 90 tasks would not fit into memory
    assert "kept_simulators: 1" in (_folder(tmp_path / "whole") / "config.yaml").read_text()


def _cloning(output: str, demonstrations: int, updates: int) -> tuple[str, ...]:
    return (
        "--output",
        output,
        "--demonstrations",
        str(demonstrations),
        "--noise",
        "0.15",
        "--updates",
        str(updates),
    )


def _protocol(policy: Path, outputs: Path, *words: str) -> "subprocess.Popen[bytes]":
    """The published protocol on one task, in one process; a fixed batch order makes two of them
    comparable.
    """
    overrides = (
        "env.max_episode_steps=64",
        "env.num_servers=1",
        "env.envs_per_server=4",
        "trainer.deterministic=true",
    )
    command = [
        sys.executable,
        "-m",
        "siirl.evaluate",
        f"checkpoint={policy}",
        *DRAWER,
        *overrides,
        "cluster=local",
        "actions=sampled",
    ]
    return subprocess.Popen(
        [*command, f"trainer.output_dir={outputs}", *words],
        cwd=policy.parent,
        stdout=subprocess.DEVNULL,
    )


def _folder(outputs: Path) -> Path:
    (folder,) = outputs.glob("evaluation/*")
    return folder


def _episodes(outputs: Path) -> list[dict[str, Any]]:
    """Whole lines of the episodes so far."""
    files = list(outputs.glob(f"evaluation/*/{EPISODES_FILE}"))
    lines = files[0].read_text().splitlines(keepends=True) if files else []
    return [json.loads(line) for line in lines[1:] if line.endswith("\n")]
