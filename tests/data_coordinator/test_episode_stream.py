"""The training stream is a pure function of seed and position; evaluation never meets its seeds."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.seeds import FIRST_DEMONSTRATION_SEED, FIRST_TRAINING_SEED
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.data_coordinator.task_stream import (
    LOADER_COLUMNS,
    EpisodeTask,
    TaskLoader,
    evaluation_tasks,
    training_seed,
)
from siirl.errors import CheckpointError, ConfigError

TASKS = ("reach-v3", "door-open-v3", "drawer-open-v3")


def loader(**options):
    return TaskLoader(**{"tasks": TASKS, "prompts_per_step": 6, "seed": 1, **options})


def test_a_step_is_balanced_over_tasks():
    assert Counter(task.task for task in loader().draw(6)) == {
        "reach-v3": 2,
        "door-open-v3": 2,
        "drawer-open-v3": 2,
    }


def test_weights_give_tasks_more_and_fewer_prompts():
    stream = loader(weights=(4, 2, 0))
    for _ in range(5):
        assert Counter(task.task for task in stream.draw(stream.prompts_per_step)) == {
            "reach-v3": 4,
            "door-open-v3": 2,
        }


def test_trials_of_a_weighted_task_count_its_prompts():
    stream = loader(weights=(4, 2, 0))
    trials = [
        task.trial_id
        for _ in range(3)
        for task in stream.draw(stream.prompts_per_step)
        if task.task == "door-open-v3"
    ]
    assert trials == [0, 1, 2, 3, 4, 5]


def test_equal_weights_change_nothing():
    assert loader(weights=(1, 1, 1)).draw(60) == loader().draw(60)


def test_state_of_other_weights_is_refused_and_state_without_weights_means_equal_ones():
    old = {name: value for name, value in loader().state_dict().items() if name != "weights"}
    loader().load_state_dict(old)
    with pytest.raises(
        CheckpointError,
        match=r"has weights \[1,1,1\], but this run has \[4,2,0\] \(data.task_weights\)",
    ):
        loader(weights=(4, 2, 0)).load_state_dict(old)


def test_trials_count_the_prompts_of_a_task():
    stream = loader()
    trials = [
        task.trial_id
        for _ in range(2)
        for task in stream.draw(stream.prompts_per_step)
        if task.task == "reach-v3"
    ]
    assert trials == [0, 1, 2, 3]


def test_group_ids_and_seeds_never_repeat():
    stream = loader()
    tasks = [task for _ in range(50) for task in stream.draw(stream.prompts_per_step)]
    assert len({task.group_id for task in tasks}) == len({task.seed for task in tasks}) == 300


def test_order_of_tasks_changes_from_pass_to_pass():
    stream = loader(prompts_per_step=3)
    orders = {
        tuple(task.task_id for task in stream.draw(stream.prompts_per_step)) for _ in range(30)
    }
    assert len(orders) == 6


def test_same_seed_same_stream():
    assert loader().draw(6) == loader().draw(6)


def test_other_seed_other_episodes():
    seeds = {task.seed for task in loader(seed=1).draw(600)}
    assert not seeds & {task.seed for task in loader(seed=2).draw(600)}


@given(st.integers(0, 2**63), st.integers(0, 2**40))
def test_training_seeds_are_above_all_evaluation_seeds(run_seed, number):
    assert FIRST_TRAINING_SEED <= training_seed(run_seed=run_seed, number=number) < 2**31


@given(st.integers(0, FIRST_DEMONSTRATION_SEED - 1000), st.integers(1, 1000))
def test_evaluation_seeds_are_below_those_of_demonstrations(offset, episodes):
    tasks = evaluation_tasks(tasks=TASKS, episodes_per_task=episodes, seed_offset=offset)
    assert {task.seed for task in tasks} == set(range(offset, offset + episodes))
    assert max(task.seed for task in tasks) < FIRST_DEMONSTRATION_SEED


@pytest.mark.parametrize(
    ("offset", "episodes"), [(FIRST_DEMONSTRATION_SEED - 1, 2), (-1, 5), (0, 0)]
)
def test_evaluation_seeds_out_of_range_are_refused(offset, episodes):
    with pytest.raises(
        ConfigError, match=f"trainer.val_episodes={episodes} from trainer.val_seed_offset={offset}"
    ):
        evaluation_tasks(tasks=TASKS, episodes_per_task=episodes, seed_offset=offset)


@given(st.integers(1, 8), st.integers(8, 20), st.integers(1, 4))
def test_ranks_together_see_what_one_rank_sees(ranks, prompts, steps):
    alone = loader(prompts_per_step=prompts)
    shared = [loader(prompts_per_step=prompts, rank=rank, ranks=ranks) for rank in range(ranks)]
    for _ in range(steps):
        union = [task for stream in shared for task in stream.draw(stream.prompts_per_step)]
        assert sorted(union, key=lambda task: task.group_id) == alone.draw(alone.prompts_per_step)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 5))
def test_resumed_stream_continues_at_another_number_of_ranks(before, after, steps):
    whole = loader()
    expected = [whole.draw(whole.prompts_per_step) for _ in range(steps + 2)][steps:]
    interrupted = loader(rank=before - 1, ranks=before)
    for _ in range(steps):
        interrupted.draw(interrupted.prompts_per_step)
    resumed = [loader(rank=rank, ranks=after) for rank in range(after)]
    for stream in resumed:
        stream.load_state_dict(interrupted.state_dict())
    for step in expected:
        assert (
            sorted(
                (task for stream in resumed for task in stream.draw(stream.prompts_per_step)),
                key=lambda task: task.group_id,
            )
            == step
        )


def test_a_refill_takes_the_next_prompts():
    stream = loader()
    stream.draw(stream.prompts_per_step)
    assert [task.group_id for task in stream.draw(4)] == [6, 7, 8, 9]
    assert stream.state_dict()["position"] == 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": 2}, r"has seed 1, but this run has 2 \(data.seed, by default trainer.seed\)"),
        ({"tasks": ("reach-v3",)}, r"but this run has \[reach-v3\] \(env.tasks\). Resume with"),
    ],
)
def test_state_of_another_stream_is_refused(options, said):
    with pytest.raises(CheckpointError, match=said):
        loader(**options).load_state_dict(loader().state_dict())


def test_ranks_share_an_evaluation():
    whole = evaluation_tasks(tasks=TASKS, episodes_per_task=5)
    shares = [
        evaluation_tasks(tasks=TASKS, episodes_per_task=5, rank=rank, ranks=2) for rank in range(2)
    ]
    assert [len(share) for share in shares] == [8, 7]
    assert (
        {task.group_id for share in shares for task in share}
        == {task.group_id for task in whole}
        == set(range(15))
    )


def test_prompts_make_a_batch():
    batch = Samples2Dict([Sample(task.columns()) for task in loader().draw(6)])
    assert set(batch.keys()) == LOADER_COLUMNS
    assert batch["index"].tolist() == [0, 1, 2, 3, 4, 5]


def test_columns_of_a_prompt():
    task = EpisodeTask(task="reach-v3", task_id=0, trial_id=4, seed=1_000_007, group_id=12)
    assert task.columns() == {
        "index": 12,
        "task_name": "reach-v3",
        "task_id": 0,
        "trial_id": 4,
        "seed": 1_000_007,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ()}, "at least one task"),
        ({"tasks": "reach-v3"}, "must be a list"),
        ({"tasks": ("a", "a")}, "names a task twice"),
        (
            {"prompts_per_step": 1, "ranks": 2},
            "data.train_batch_size=1 leaves some of the 2 ranks without a prompt",
        ),
        ({"rank": 2, "ranks": 2}, "rank 2 of 2"),
    ],
)
def test_impossible_streams_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        loader(**options)
