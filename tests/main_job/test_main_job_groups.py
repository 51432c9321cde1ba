"""Separate groups as real processes: a killed rollout rank is replaced, and a killed training rank
or exchange ends the run with a sentence, after which it can be resumed.
"""

import os
import re
import signal

import pytest

GROUPS = ("trainer.n_gpus_per_node=2", "dag.groups={rollout: 1, train: 1}")
STREAM = (*GROUPS, "trainer.max_staleness=1")


def kill_one(run, title: str) -> None:
    """Kill the process of the run whose title has `title`."""
    [pid] = [pid for pid, name in run.processes().items() if title in name]
    os.kill(pid, signal.SIGKILL)


def after_step(run, step: int) -> None:
    """Wait until `step` is reported."""
    run.wait_until(lambda: re.search(rf"^ +{step}/", run.text, re.MULTILINE) is not None)


def test_a_killed_rollout_rank_is_replaced_and_training_goes_on(start_run):
    run = start_run(*STREAM, "trainer.total_steps=12")
    after_step(run, 3)
    kill_one(run, "ray::_ReplaceableRank")
    assert run.wait() == 0, run.text
    assert "another takes its place" in run.text
    assert re.search(r"^ +12/12", run.text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "sentence"),
    [("ray::_Rank", "The process of rank 0 died"), ("ray::Exchange", "passes rows and weights")],
)
def test_a_killed_training_rank_or_exchange_ends_the_run_which_resumes(start_run, title, sentence):
    run = start_run(*STREAM, "trainer.total_steps=400")
    after_step(run, 3)
    kill_one(run, title)
    assert run.wait() == 1, run.text
    assert sentence in " ".join(run.text.split())
    again = start_run(*STREAM, "trainer.total_steps=12", "trainer.resume=auto")
    assert again.wait() in (0, 2), again.text
    assert "Traceback" not in again.text
