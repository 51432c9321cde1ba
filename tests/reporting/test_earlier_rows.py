"""A resumed run begins with the metrics of the run that it continues."""

import json
from pathlib import Path

import pytest

from siirl.report import main
from siirl.reporting.earlier_rows import comparable_rows, earlier_rows
from siirl.reporting.report_page import write_report


def write_run(
    folder: Path,
    steps: dict[int, int],
    *,
    resumed: Path | None = None,
    env: dict | None = None,
    **trainer: object,
) -> Path:
    """A run with successes of ten held-out episodes by step."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        json.dumps({"trainer": {"resume": resumed and str(resumed), **trainer}, "env": env or {}})
    )
    rows = [
        {"step": step, "val/all/successes": float(found), "val/all/episodes": 10.0}
        for step, found in steps.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def steps_of(rows: list[dict]) -> list[int]:
    return [row["step"] for row in rows]


def test_rows_after_the_checkpoint_are_left_out(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "1", {0: 2, 1: 3, 2: 9})
    checkpoint = first / "checkpoints" / "step_00000001"
    second = write_run(tmp_path / "a" / "2", {2: 4, 3: 5}, resumed=checkpoint)
    assert steps_of(earlier_rows(second, before=2)) == [0, 1]


def test_a_run_that_resumed_a_resumed_run_begins_with_the_first(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "1", {0: 2, 1: 3})
    second = write_run(tmp_path / "a" / "2", {2: 4, 3: 4}, resumed=first)
    third = write_run(
        tmp_path / "a" / "3", {4: 8}, resumed=second / "checkpoints" / "step_00000003"
    )
    assert steps_of(earlier_rows(third, before=4)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("env", "trainer", "changed"),
    [
        ({"perturb": None}, {}, ["env.perturb"]),
        ({"max_episode_steps": 50}, {}, ["env.max_episode_steps"]),
        ({"tasks": ["door-open"]}, {"val_episodes": 4}, ["env.tasks", "trainer.val_episodes"]),
        ({"num_servers": 4}, {"total_steps": 9}, []),
        ({"named": "newer"}, {}, []),
    ],
    ids=str,
)
def test_evaluations_of_other_episodes_are_not_compared(
    tmp_path: Path, env: dict, trainer: dict, changed: list[str]
) -> None:
    own = {"perturb": ["texture"], "max_episode_steps": 9, "tasks": ["drawer-open"]}
    first = write_run(tmp_path / "a" / "1", {0: 2, 1: 3}, env=own, val_episodes=2, total_steps=1)
    second = write_run(
        tmp_path / "a" / "2", {2: 3}, resumed=first, env=own, val_episodes=2, total_steps=2
    )
    third = write_run(
        tmp_path / "a" / "3",
        {3: 9},
        resumed=second,
        env={**own, "num_servers": 2, **env},
        **{"val_episodes": 2, "total_steps": 3, **trainer},
    )
    rows, found = comparable_rows(third, before=3)
    assert (steps_of(rows), found) == ([] if changed else [0, 1, 2], changed)
    page = write_report(third).read_text()
    assert (changed == []) == ("evaluated on other episodes" not in page)
    assert ("20.0 → 90.0 %" in page) == (changed == [])


@pytest.mark.parametrize(
    ("name", "kwargs", "changed"),
    [
        ("openenv", {"token_file": "8790.token", "deadline_s": 9}, []),
        ("openenv", {"token_file": "8790.token", "instructions": "Other."}, ["env.kwargs"]),
        ("mine:Env", {"token_file": "8790.token"}, ["env.kwargs", "env.url"]),
    ],
)
def test_a_server_of_openenv_at_another_address_has_the_same_episodes(
    tmp_path: Path, name: str, kwargs: dict, changed: list[str]
) -> None:
    """A resumed run has its environment: the checkpoint's stream refuses another one."""
    before = {"url": "http://127.0.0.1:8770", "kwargs": {"token_file": "8770.token"}}
    after = {"url": "http://127.0.0.1:8790", "kwargs": kwargs}
    first = write_run(tmp_path / "a" / "1", {0: 2, 1: 3}, env={"name": name, **before})
    second = write_run(tmp_path / "a" / "2", {2: 9}, resumed=first, env={"name": name, **after})
    rows, found = comparable_rows(second, before=2)
    assert (steps_of(rows), found) == ([] if changed else [0, 1], changed)


def test_only_the_runs_since_the_last_change_are_compared(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "1", {0: 2}, env={"perturb": ["texture"]})
    second = write_run(tmp_path / "a" / "2", {1: 3}, resumed=first, env={"perturb": None})
    third = write_run(tmp_path / "a" / "3", {2: 9}, resumed=second, env={"perturb": None})
    rows, changed = comparable_rows(third, before=2)
    assert (steps_of(rows), changed) == ([1], ["env.perturb"])


@pytest.mark.parametrize("resumed", [None, Path("gone"), Path("gone/checkpoints/step_00000001")])
def test_a_new_run_and_one_whose_earlier_run_is_gone_have_none(
    tmp_path: Path, resumed: Path | None
) -> None:
    assert earlier_rows(write_run(tmp_path / "a", {2: 4}, resumed=resumed), before=2) == []


def test_a_run_that_names_itself_ends(tmp_path: Path) -> None:
    run = tmp_path / "a"
    assert earlier_rows(write_run(run, {2: 4}, resumed=run), before=2) == []


def test_the_page_and_the_curves_of_a_resumed_run_begin_at_step_0(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "1", {0: 2, 1: 3})
    second = write_run(tmp_path / "b" / "2", {2: 9}, resumed=first)
    page = write_report(second).read_text()
    assert "<th>step 0</th><th>step 2</th>" in page
    assert "+70.0 points" in page
    assert main([str(second), "--export", str(tmp_path / "curves.csv")]) == 0
    rows = (tmp_path / "curves.csv").read_text().splitlines()[1:]
    assert [row.split(",")[1] for row in rows] == ["0", "1", "2"]
