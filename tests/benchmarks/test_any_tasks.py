"""The benchmark of tasks without tuning: what is drawn, and what its tables say."""

import itertools
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.any_tasks import return_table, success_table
from benchmarks.any_tasks_arms import ARMS, Job, Supervised, found_in, thirds
from benchmarks.any_tasks_suites import LIBERO_TUNED, PLAYED, RESULTS, TEXT, TUNED, suites
from envs.libero.suites import choose_tasks
from envs.math.generators import GeneratedTask
from siirl.params.parser import parse_config

SUITES = suites()


def job(suite: str, work: Path = Path("unused"), *, number: int = 1) -> Job:
    return Job(suite=SUITES[suite], number=number, seed=3, episodes=5, steps=None, work=work)


@pytest.mark.parametrize("suite", SUITES)
def test_no_task_is_drawn_twice_and_none_was_tuned(suite: str) -> None:
    drawn = list(itertools.chain(*SUITES[suite].groups))
    assert len(drawn) == len(set(drawn))
    assert not set(drawn) & (TUNED | PLAYED | LIBERO_TUNED | {"sums-2", "Pendulum-v1"})


def test_the_draw_is_that_of_the_committed_results() -> None:
    for run in json.loads((RESULTS / "any_tasks_kept.json").read_text())["runs"]:
        assert set(SUITES["metaworld"].groups[run["trio"] - 1]) == set(run["tasks"])


def test_ten_tasks_of_libero_are_named_as_its_key_takes_them() -> None:
    groups = SUITES["libero"].groups
    assert [len(group) for group in groups] == [5, 5]
    assert len(choose_tasks("spatial+object+goal", [*groups[0], *groups[1]])) == 10


@pytest.mark.parametrize("name", TEXT)
def test_a_text_task_has_a_thousand_exercises(name: str) -> None:
    task = GeneratedTask.of(name)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    assert len({task.draw(random, task.size).key for _ in range(8000)}) >= 1000


@pytest.mark.parametrize("suite", ["metaworld", "text", "control"])
def test_the_words_of_a_suite_are_a_configuration(suite: str) -> None:
    parse_config([*job(suite).words, *SUITES[suite].train, "actor_rollout_ref.model.path=null"])


def test_a_run_is_summed_up_by_thirds_and_steps_without_a_value_do_not_count() -> None:
    assert thirds([1.0, None, 2.0, 3.0, 5.0, None, None]) == [1.5, 4.0, None]


def test_an_evaluation_is_read_by_task() -> None:
    row = {
        **{"val/sums-3/successes": 3.0, "val/sums-3/episodes": 5.0, "val/sums-3/return": 0.6},
        **{"val/all/successes": 3.0, "val/all/episodes": 5.0, "actor/lr": 1.0},
    }
    assert found_in(row, job("text")) == {"sums-3": [3.0, 5.0]}
    assert found_in(row, job("control")) == {"sums-3": [0.6]}


def test_a_row_has_all_minutes_and_an_arm_its_mean_gain() -> None:
    run = {"group": 1, "tasks": ["a", "b"], "arm": "defaults", "seed": 1, "steps": 40}
    times = {"start_minutes": 1.0, "minutes": 2.5}
    first = {"before": {"a": [0, 10], "b": [4, 10]}, "after": {"a": [6, 10], "b": [8, 10]}}
    second = {"before": {"a": [5, 10], "b": [5, 10]}, "after": {"a": [5, 10], "b": [7, 10]}}
    table = success_table([{**run, **times, **first}, {**run, **times, **second}])
    assert (
        "| 20.0% [8.1, 41.6] | 70.0% [48.1, 85.5] | a 0% → 60%, b 40% → 80% | 40 | 3.5 |" in table
    )
    assert "| defaults | 2 | +30.0 | +10.0 |" in table


def test_a_task_without_success_has_its_mean_returns() -> None:
    run = {"tasks": ["Acrobot-v1"], "arm": "defaults", "seed": 2, "environment_steps": 99840}
    found = {"before": {"Acrobot-v1": [-500.0]}, "after": {"Acrobot-v1": [-85.25]}}
    table = return_table([{**run, **found, "minutes": 2.0, "processor_minutes": 1.5}])
    assert "| Acrobot-v1 | defaults | 2 | -500.0 | -85.2 | 99,840 | 2.0 | 1.5 |" in table


def test_supervised_asks_for_the_arm_whose_time_it_takes(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="supervised takes as long as defaults"):
        Supervised("defaults").run(job("text", tmp_path), tmp_path)


def test_every_suite_has_an_arm_without_options() -> None:
    assert set(ARMS) == set(SUITES)
    assert all("defaults" in arms for arms in ARMS.values())
