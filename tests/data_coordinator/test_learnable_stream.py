"""A stream that follows success gives tasks with intermediate success more prompts than tasks
with constant outcomes; all ranks draw the same prompts.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.data_coordinator.learnable import ALIKE, LearnableTaskLoader
from siirl.data_coordinator.task_stream import TaskLoader
from siirl.errors import CheckpointError

TASKS = ("reach", "door-open", "drawer-open")
COUNTS = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(
    lambda pair: (min(pair), max(pair))
)
OUTCOMES = st.lists(st.dictionaries(st.sampled_from(TASKS), COUNTS), max_size=4)


def loader(**options):
    return LearnableTaskLoader(**{"tasks": TASKS, "prompts_per_step": 12, "seed": 1, **options})


def shown(stream, **rates):
    """Ten rollouts of a hundred episodes of each task, at these rates of success."""
    for _ in range(10):
        stream.observe([{task.replace("_", "-"): (rate, 100) for task, rate in rates.items()}])
    return stream


def test_tasks_have_equal_shares_before_the_first_outcome():
    stream = loader()
    np.testing.assert_allclose(stream.shares(), 1 / 3)
    assert set(Counter(task.task for task in stream.draw(stream.prompts_per_step)).values()) == {4}


def test_a_task_at_a_half_has_more_prompts_than_one_that_is_nearly_solved():
    half, solved, solved_too = shown(loader(), reach=50, door_open=95, drawer_open=95).shares()
    assert solved == pytest.approx(solved_too)
    # a little less: rates are smoothed
    assert (half - ALIKE / 3) / (solved - ALIKE / 3) == pytest.approx(0.25 / 0.0475, rel=0.05)


def test_a_solved_task_keeps_some_prompts_and_gets_them_back_when_it_falls():
    stream = shown(loader(), reach=100, door_open=50, drawer_open=50)
    assert ALIKE / 3 < stream.shares()[0] < ALIKE / 3 + 0.01
    assert shown(stream, reach=50, door_open=50, drawer_open=50).shares()[0] == pytest.approx(
        1 / 3, rel=0.05
    )


@given(OUTCOMES, st.sampled_from([(), (4, 2, 0), (0, 1, 3)]), st.integers(1, 40))
def test_a_step_has_the_shares_rounded_up_or_down(outcomes, weights, count):
    stream = loader(weights=weights)
    stream.observe(outcomes)
    shares = stream.shares()
    assert shares.sum() == pytest.approx(1)
    drawn = Counter(task.task_id for task in stream.draw(count))
    for task, share in enumerate(shares):
        assert np.floor(share * count - 1e-9) <= drawn[task] <= np.ceil(share * count + 1e-9)


@given(st.integers(1, 4), st.lists(OUTCOMES, min_size=1, max_size=4))
def test_ranks_together_see_what_one_rank_sees(ranks, steps):
    alone, shared = loader(), [loader(rank=rank, ranks=ranks) for rank in range(ranks)]
    for outcomes in steps:
        union = [task for stream in shared for task in stream.draw(stream.prompts_per_step)]
        assert sorted(union, key=lambda task: task.group_id) == alone.draw(alone.prompts_per_step)
        for stream in (alone, *shared):
            stream.observe(outcomes)


@given(st.integers(1, 3), st.integers(1, 3), st.lists(OUTCOMES, min_size=2, max_size=5), st.data())
def test_resumed_stream_continues_at_another_number_of_ranks(before, after, steps, data):
    cut = data.draw(st.integers(1, len(steps) - 1))
    whole, interrupted = loader(), loader(rank=before - 1, ranks=before)
    for outcomes in steps[:cut]:
        for stream in (whole, interrupted):
            stream.draw(stream.prompts_per_step)
            stream.observe(outcomes)
    resumed = [loader(rank=rank, ranks=after) for rank in range(after)]
    for stream in resumed:
        stream.load_state_dict(interrupted.state_dict())
    for outcomes in steps[cut:]:
        union = [task for stream in resumed for task in stream.draw(stream.prompts_per_step)]
        assert sorted(union, key=lambda task: task.group_id) == whole.draw(whole.prompts_per_step)
        for stream in (whole, *resumed):
            stream.observe(outcomes)


def test_seeds_never_repeat_and_trials_count_the_prompts_of_a_task():
    stream = loader()
    drawn = [
        task
        for _ in range(20)
        for task in shown(stream, reach=5, door_open=50, drawer_open=95).draw(12)
    ]
    assert len({task.seed for task in drawn}) == len({task.group_id for task in drawn}) == 240
    for name in TASKS:
        trials = [task.trial_id for task in drawn if task.task == name]
        assert trials == list(range(len(trials)))


@pytest.mark.parametrize(
    ("kind", "other"), [(LearnableTaskLoader, TaskLoader), (TaskLoader, LearnableTaskLoader)]
)
def test_state_of_the_other_sampling_is_refused(kind, other):
    options = {"tasks": TASKS, "prompts_per_step": 12, "seed": 1}
    with pytest.raises(CheckpointError, match="has task sampling "):
        kind(**options).load_state_dict(other(**options).state_dict())


def test_metrics_report_the_shares():
    metrics = shown(loader(), reach=50, door_open=95, drawer_open=5).metrics()
    assert set(metrics) == {f"data/{task}/share" for task in TASKS}
    assert sum(metrics.values()) == pytest.approx(1)
