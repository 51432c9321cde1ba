"""Rollouts as lines of text: the kept ones, the contents of a line, and resumed runs."""

import json

import pytest
from rich.console import Console

from siirl.engine.rollout.workflow import Trajectory
from siirl.errors import SiirlError
from siirl.report import main
from siirl.reporting.metric_writers import MetricWriters, RunDescription
from siirl.reporting.report_page import write_report
from siirl.reporting.rollout_files import (
    ALL,
    ROLLOUTS_FOLDER,
    RolloutFiles,
    line_of,
    read_rollouts,
    steps_of,
)
from siirl.reporting.rollout_view import show


def trajectory(uid="a", success=True, **record):
    row = {
        "uid": uid, "task_name": "sums-2", "index": 7, "seed": 3, "policy_version": 5, "finish_step": 1, "complete": success,
        "truncated": False, "env_return": float(success), "responses": "not for reading",
    }  # fmt: skip
    return Trajectory(
        row=row,
        record={"prompt": [{"role": "user", "content": "1+2="}], "verdict": "correct", **record},
    )


def uids(rows):
    return [row["uid"] for row in rows]


def test_line_has_the_episode_as_a_person_reads_it():
    turns = [{"role": "assistant", "content": "3", "tokens": [51], "log_probs": [-0.25]}]
    assert line_of(trajectory(turns=turns), kind="train", step=4, reward=0.5) == {
        "step": 4, "kind": "train", "uid": "a", "task": "sums-2", "group": 7, "seed": 3, "policy_version": 5, "turns_taken": 1,
        "success": True, "truncated": False, "env_return": 1.0, "reward": 0.5, "prompt": [{"role": "user", "content": "1+2="}],
        "verdict": "correct", "turns": turns,
    }  # fmt: skip


def test_rollouts_wait_for_their_reward_and_a_filtered_one_has_none(tmp_path):
    files = RolloutFiles(tmp_path, count=ALL)
    files.keep([trajectory("a"), trajectory("b")], kind="train", step=1)
    assert not steps_of(tmp_path)
    files.write({"a": 0.75})
    assert [(row["uid"], row["reward"]) for row in read_rollouts(tmp_path)] == [
        ("a", 0.75),
        ("b", None),
    ]
    files.close()
    files.close()


def test_no_more_than_the_count_of_each_step_are_kept(tmp_path):
    files = RolloutFiles(tmp_path, count=3)
    for step in (1, 2):
        files.keep([trajectory(f"{step}a"), trajectory(f"{step}b")], kind="train", step=step)
        files.write({})
        # a refill
        files.keep([trajectory(f"{step}c"), trajectory(f"{step}d")], kind="train", step=step)
        files.write({})
    files.keep([trajectory("v")], kind="val", step=2)
    files.close()
    assert uids(read_rollouts(tmp_path)) == ["1a", "1b", "1c", "2a", "2b", "2c", "v"]


def test_count_of_zero_writes_nothing(tmp_path):
    files = RolloutFiles(tmp_path, count=0)
    files.keep([trajectory()], kind="train", step=1)
    files.close()
    assert not list(tmp_path.iterdir())


def test_ranks_share_the_count_and_have_files_of_their_own(tmp_path):
    ranks = [RolloutFiles(tmp_path, count=3, rank=rank, num_ranks=2) for rank in (0, 1)]
    for rank, files in enumerate(ranks):
        files.keep([trajectory(f"{rank}{i}") for i in range(5)], kind="train", step=1)
        files.close()
    assert uids(read_rollouts(tmp_path)) == ["00", "01", "10"]


def test_first_rank_removes_what_any_rank_of_an_earlier_run_left(tmp_path):
    earlier = RolloutFiles(tmp_path, count=ALL, rank=1, num_ranks=2)
    earlier.keep([trajectory("old")], kind="train", step=2)
    earlier.close()
    RolloutFiles(tmp_path, count=ALL, first_step=2)
    assert not steps_of(tmp_path)


def test_resumed_run_replaces_the_steps_that_it_repeats(tmp_path):
    first = RolloutFiles(tmp_path, count=ALL)
    for step in (1, 2, 3):
        first.keep([trajectory(f"old{step}")], kind="train", step=step)
    first.close()
    resumed = RolloutFiles(tmp_path, count=ALL, first_step=2)
    resumed.keep([trajectory("new2")], kind="train", step=2)
    resumed.close()
    assert uids(read_rollouts(tmp_path)) == ["old1", "new2"]


def test_rollouts_are_found_by_step_kind_and_failure(tmp_path):
    files = RolloutFiles(tmp_path, count=ALL)
    files.keep([trajectory("good"), trajectory("bad", success=False)], kind="train", step=1)
    files.keep([trajectory("held out", success=False)], kind="val", step=1)
    files.keep([trajectory("later")], kind="train", step=2)
    files.close()
    assert uids(read_rollouts(tmp_path, step=1)) == ["good", "bad", "held out"]
    assert uids(read_rollouts(tmp_path, failures_only=True)) == ["bad", "held out"]
    assert uids(read_rollouts(tmp_path, kind="val")) == ["held out"]
    assert steps_of(tmp_path) == [1, 2]
    assert len((tmp_path / "train/step_000001.jsonl").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "val/step_000001.jsonl").read_text())["uid"] == "held out"


def test_unwritable_folder_is_reported_with_the_remedy(tmp_path):
    (tmp_path / "rollouts").write_text("a file where the folder should be")
    files = RolloutFiles(tmp_path / "rollouts", count=ALL)
    files.keep([trajectory()], kind="train", step=1)
    with pytest.raises(SiirlError, match=r"could not be written .* trainer\.save_rollouts=0"):
        files.write({})


def test_rollouts_are_shown_in_the_terminal(tmp_path, capsys):
    files = RolloutFiles(tmp_path / ROLLOUTS_FOLDER, count=ALL)
    turns = [
        {
            "role": "assistant",
            "content": "[b]4[/b]",
            "tokens": [52, 53],
            "log_probs": [-0.25, -0.75],
            "policy_versions": [5, 7],
        },
        {"role": "tool", "content": "no such tool"},
    ]
    files.keep(
        [trajectory("good"), trajectory("bad", success=False, turns=turns, verdict="wrong")],
        kind="train",
        step=8,
    )
    files.write({"bad": 0.25})
    files.close()
    assert main([str(tmp_path), "--rollouts", "--failures"]) == 0
    shown = capsys.readouterr().out
    assert "1+2= -> [b]4[/b]: fail, wrong, reward 0.25, return 0, train sums-2, step 8" in shown
    assert "user: 1+2=" in shown
    assert "assistant: [b]4[/b]" in shown
    assert "tool: no such tool" in shown
    assert "2 tokens, mean log-prob -0.500, policy versions 5 to 7, bad" in shown
    assert "1 of 1 failed rollouts of step 8" in shown
    assert "good" not in shown


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (None, "has no rollouts: name the folder"),
        (3, "has no rollouts of step 3; its steps are 1"),
    ],
)
def test_missing_rollouts_are_reported(tmp_path, capsys, step, words):
    if step is not None:
        files = RolloutFiles(tmp_path / ROLLOUTS_FOLDER, count=ALL)
        files.keep([trajectory()], kind="train", step=1)
        files.close()
    assert (
        main([str(tmp_path), "--rollouts", *([] if step is None else ["--step", str(step)])]) == 2
    )
    assert words in capsys.readouterr().err


def test_page_shows_the_newest_rollouts_by_prompt_best_first(tmp_path):
    with MetricWriters([], RunDescription(tmp_path, total_steps=1)) as writers:
        writers.write(step=1, metrics={"val/all/any_successes": 3.0, "val/all/any_episodes": 4.0})
    files = RolloutFiles(tmp_path / ROLLOUTS_FOLDER, count=ALL)
    files.keep([trajectory("old")], kind="train", step=1)
    files.keep([trajectory("good"), trajectory("<bad>", success=False)], kind="train", step=2)
    files.close()
    page = write_report(tmp_path).read_text()
    assert '<h2 id="rollouts">Rollouts of step 2</h2>' in page
    assert page.index("policy version 5, good") < page.index("policy version 5, &lt;bad&gt;")
    assert "1 of 2 succeeded" in page
    assert "policy version 5, old" not in page
    assert "75.0 % [30.1, 95.4] (3/4)" in page


def test_a_models_text_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;owned\x07"
    row = {
        "kind": "train",
        "task": hostile,
        "step": 1,
        "success": False,
        "verdict": hostile,
        "reward": 0.0,
        "env_return": 0.0,
    }
    row |= {"truncated": False, "policy_version": 0, "uid": hostile, "ground_truth": hostile}
    row |= {
        "prompt": [{"role": "user", "content": f"2 + 2?\n{hostile}"}],
        "turns": [{"role": hostile, "content": hostile}],
    }
    show([row], Console())
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x07"} & set(shown)
    assert "user: 2 + 2?\n\\x1b]0;owned\\x07" in shown


DAMAGES = [
    ({"kind": None}, "kind=None"),
    ({"success": "yes"}, "success='yes'"),
    ({"reward": 10**400}, "reward="),
    ({"seed": []}, "seed="),
    ({"turns": [{"role": "assistant"}]}, "turns="),
    ({"turns": [{"role": "a", "content": "b", "log_probs": ["c"]}]}, "turns="),
    ({"turns": [{"role": "a", "content": "b", "policy_versions": [-1]}]}, "turns="),
    ({"prompt": 3}, "prompt=3"),
    ({"reward_parts": {"a": "b"}}, "reward_parts="),
]


@pytest.mark.parametrize(("change", "words"), DAMAGES)
def test_a_damaged_rollout_is_refused_with_file_number_and_remedy(tmp_path, change, words):
    file = tmp_path / "val" / "step_000001.jsonl"
    file.parent.mkdir()
    line = line_of(trajectory(), kind="val", step=1, reward=1.0)
    file.write_text(json.dumps(line) + "\n" + json.dumps(line | change) + "\n")
    with pytest.raises(ValueError, match="delete that line") as refused:
        list(read_rollouts(tmp_path))
    assert f"{file}, rollout 2, has {words}" in str(refused.value)


def test_a_rollout_that_lacks_entries_is_refused_and_names_them(tmp_path):
    file = tmp_path / "train" / "step_000001.jsonl"
    file.parent.mkdir()
    line = line_of(trajectory(), kind="train", step=1, reward=1.0)
    del line["kind"], line["uid"]
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=r"rollout 1, has no kind, uid\. Correct"):
        list(read_rollouts(tmp_path))
