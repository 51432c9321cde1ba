"""Whole runs on environments that fail during the run: they end with a message and leave no
process.
"""

import json
import os
from pathlib import Path

import pytest

from siirl.data_coordinator.task_stream import training_seed

FAILED = 1
HERE = Path(__file__).parent
OWN_ENV = ("env=custom", "reward=return", "trainer.total_steps=2")


def find_envs() -> dict[str, str]:
    """Environment variables that let processes import `bad_envs`."""
    return {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NanEnv", "values are NaN or infinite"),
        ("WrongShapeEnv", "observation['proprioception'] is float32 (3,) instead of float32 (2,)"),
        ("WrongDtypeEnv", "observation['proprioception'] is float64 (2,) instead of float32 (2,)"),
    ],
)
# whole runs, ten seconds each on idle cores; tests/env_server/test_env_checks.py has the checks
# themselves
@pytest.mark.slow
def test_observations_that_are_not_what_the_spec_says_stop_the_run(
    start_run, name: str, expected: str
) -> None:
    run = start_run(*OWN_ENV, f"env.name=bad_envs:{name}", "cluster=local", environment=find_envs())
    assert run.wait() == FAILED, run.text
    run.seconds_until_gone()
    assert "6 of 6 episodes could not be simulated, and env.max_failed_share" in run.text
    assert expected in run.text.partition("siirl: the run failed: ")[2]
    assert "Traceback (most recent call last)" not in run.text.partition("siirl: the run failed")[2]


# starts Ray: twenty seconds
@pytest.mark.parametrize("cluster", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_the_message_of_an_environments_refusal_is_reported(start_run, cluster: str) -> None:
    run = start_run(
        *OWN_ENV, "env.name=bad_envs:RefusingEnv", f"cluster={cluster}", environment=find_envs()
    )
    assert run.wait() == FAILED, run.text
    run.seconds_until_gone()
    assert (
        "siirl: the run failed: The states of task 'wait' do not fit its model: take both from one "
        "release." in run.text
    )


def test_an_environment_without_instruction_and_images_trains(start_run) -> None:
    run = start_run(
        *OWN_ENV, "env.name=bad_envs:StillEnv", "cluster=local", environment=find_envs()
    )
    assert run.wait() == 0, run.text
    rows = [
        json.loads(line) for line in (run.folders[0] / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["rollout/episode_length"] for row in rows] == [4.0, 4.0]


TWO_RANKS = (
    *(
        "env.name=bad_envs:SomeSeedsFailEnv",
        "env.max_failed_share=1.0",
        "env.max_replays=0",
        "trainer.n_gpus_per_node=2",
    ),
    *("actor_rollout_ref.rollout.n=2", "trainer.total_steps=1"),
)


@pytest.mark.slow  # Ray, two ranks and servers that are replaced
def test_a_rank_whose_episodes_all_failed_takes_part_without_rows(start_run) -> None:
    """Prompts take turns at ranks, and their seeds are consecutive: seeds of one parity are those
    of one rank.
    """
    parity = training_seed(run_seed=0, number=1) % 2
    run = start_run(*OWN_ENV, *TWO_RANKS, environment=find_envs() | {"FAILING": str(parity)})
    assert run.wait() == 0, run.text
    (row,) = [
        json.loads(line) for line in (run.folders[0] / "metrics.jsonl").read_text().splitlines()
    ]
    assert (row["rollout/episodes"], row["env/failed_episodes"]) == (2.0, 2.0)


@pytest.mark.slow  # Ray, two ranks and servers that are replaced
def test_without_an_episode_on_any_rank_the_run_stops_and_says_so(start_run) -> None:
    run = start_run(*OWN_ENV, *TWO_RANKS, environment=find_envs() | {"FAILING": "01"})
    assert run.wait() == FAILED, run.text
    assert "siirl: the run failed: No episode of the step could be simulated" in run.text
    run.seconds_until_gone()
