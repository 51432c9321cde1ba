"""Sizes of resource groups: those that the planner fills in pass its checks, and the refusal of
others names sizes that do.
"""

import re

import pytest

from siirl.errors import ConfigError
from siirl.params.parser import parse, parse_config
from siirl.preflight.config_checks import config_problems
from siirl.preflight.configured_graph import load_graph
from siirl.preflight.group_placement import place
from siirl.preflight.unread import unread_problems

EIGHT = ("pipeline=grpo", "env=math", "trainer.n_gpus_per_node=8")
OPEN = "dag.groups={rollout: null, train: null}"
MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"
KL = "actor_rollout_ref.actor.use_kl_loss=true"


def groups(*words: str, job: tuple[str, ...] = EIGHT) -> dict[str, int | None]:
    config = parse_config([*job, *words])
    place(config, load_graph(config))
    return config.dag.groups


def refusal(*words: str, job: tuple[str, ...] = EIGHT) -> str:
    with pytest.raises(ConfigError) as refused:
        groups(*words, job=job)
    return str(refused.value)


def test_the_filled_in_training_ranks_divide_the_mini_batch():
    """The policy and its reference get 5 of 8; 16 prompts x 16 rollouts are 256 trajectories."""
    assert groups(OPEN, KL) == {"rollout": 4, "train": 4}


def test_filled_in_sizes_that_divide_are_those_of_the_parameters():
    """20 x 16 = 320 trajectories are divisible by 5, and by the 4 of a policy without reference."""
    assert groups(OPEN, KL, f"{MINI_BATCH}=20") == {"rollout": 3, "train": 5}
    assert groups(OPEN, f"{MINI_BATCH}=20") == {"rollout": 4, "train": 4}


def test_of_two_sizes_equally_near_the_one_with_fewer_training_ranks_is_taken():
    """Even: 3 of 6; 256 is divisible by 2 and 4."""
    words = (OPEN, "dag.apportion=even", "trainer.n_gpus_per_node=6")
    assert groups(*words) == {"rollout": 4, "train": 2}


def test_filled_in_rollout_ranks_all_get_prompts():
    """A rollout rank more than prompts is left out of the choice: 1 rollout rank for 1 prompt."""
    words = (OPEN, "trainer.n_gpus_per_node=3", "data.train_batch_size=1", f"{MINI_BATCH}=1")
    assert groups(*words) == {"rollout": 1, "train": 2}


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (["dag.groups={rollout: 4, train: 4}"], ["set by dag.groups"] * 2),
        (
            ["dag.groups={rollout: 4, train: null}"],
            ["the rest of dag.groups", "set by dag.groups"],
        ),
        (
            [OPEN, "dag.apportion=even"],
            ["dag.apportion=even: 4 of 8 ranks", "dag.apportion=even: 4 of 8 ranks"],
        ),
        (
            [OPEN, KL, f"{MINI_BATCH}=20"],
            [
                "dag.apportion=param_aware: 5 of 8 ranks for 1.3 of 2.0 million parameters",
                "dag.apportion=param_aware: 3 of 8 ranks for 0.7 of 2.0 million parameters",
            ],
        ),
    ],
)
def test_the_plan_says_why_a_group_has_its_ranks(words, reasons):
    """The training part has the policy and its reference of 0.66 million parameters each."""
    config = parse_config([*EIGHT, *words])
    assert [group.why for group in place(config, load_graph(config))] == reasons


def test_the_plan_says_that_sizes_were_moved_to_those_that_divide():
    config = parse_config([*EIGHT, OPEN, KL])
    train, _ = place(config, load_graph(config))
    assert "5 of 8 ranks" in train.why
    assert train.why.endswith(
        "; changed to the nearest number that divides prompts and mini-batches"
    )


@pytest.mark.parametrize(
    ("batch", "remedy"),
    [
        (96, {MINI_BATCH: 12}),  # 12 x 16 = 192 = 6 x 32, and 96 = 8 x 12
        (32, {MINI_BATCH: 15, "data.train_batch_size": 30}),  # 3 divides no divisor of 32
    ],
)
def test_a_refusal_of_given_sizes_names_sizes_and_batches_that_fit(batch, remedy):
    given = ("dag.groups={rollout: 2, train: 6}", f"data.train_batch_size={batch}")
    fit = " and ".join(f"{key}={value}" for key, value in remedy.items())
    sentence = (
        "256 trajectories are not divisible by the 6 ranks of the group 'train': set "
        r"dag.groups={rollout: (\d), train: (\d)}, or "
    )
    found = re.search(sentence + re.escape(fit) + r"\.", refusal(*given))
    assert found
    accepted = given[0], *(f"{key}={value}" for key, value in remedy.items())
    assert groups(given[1], *accepted) == {"rollout": 2, "train": 6}


def test_where_no_sizes_fit_the_refusal_names_batches_only():
    """2 prompts occupy at most 2 rollout ranks, and 2 trajectories at most 2 training ranks."""
    batches = ("data.train_batch_size=2", f"{MINI_BATCH}=2", "actor_rollout_ref.rollout.n=1")
    said = refusal("dag.groups={rollout: 2, train: 6}", *batches)
    assert f"'train': set {MINI_BATCH}=6 and data.train_batch_size=6." in said


PPO = (
    *("pipeline=ppo", "env=math", "trainer.n_gpus_per_node=3"),
    *("actor_rollout_ref.rollout.n=1", "data.train_batch_size=16", f"{MINI_BATCH}=16"),
)
CRITIC = "critic.ppo_mini_batch_size"
COPY = "actor_rollout_ref.actor.fsdp_size"


def test_a_critics_mini_batch_is_divided_by_the_ranks_that_train_only():
    """4 trajectories are divisible by 2 training ranks, not by all 3; 1 is not divisible by 2."""
    given = "dag.groups={rollout: 1, train: 2}"
    assert not config_problems(parse_config([*PPO, given, f"{CRITIC}=4"]))
    assert groups(given, f"{CRITIC}=4", job=PPO) == {"rollout": 1, "train": 2}
    assert (
        f"{CRITIC}=1 x actor_rollout_ref.rollout.n=1 = 1 trajectories are not divisible by the 2 "
        f"ranks of the group 'train': set dag.groups={{rollout: 2, train: 1}}, or {CRITIC}=2."
    ) in refusal(given, f"{CRITIC}=1", job=PPO)


def test_filled_in_training_ranks_divide_the_critics_mini_batch_too():
    """2 of 3 by `even`'s remainder and the actor's 16; the critic's 1 needs 1."""
    assert groups(OPEN, f"{CRITIC}=1", job=PPO) == {"rollout": 2, "train": 1}


def test_copies_of_the_weights_fill_the_ranks_that_train():
    """Copies on 2 ranks each: 4 of 8 ranks train, and 1 or 3 may not."""
    assert groups(OPEN, f"{COPY}=2") == {"rollout": 4, "train": 4}
    assert not config_problems(parse_config([*EIGHT, OPEN, f"{COPY}=2"]))
    said = refusal("dag.groups={rollout: 7, train: 1}", f"{COPY}=2")
    assert f"{COPY}=2 does not divide the 1 ranks" in said
    assert "set dag.groups={rollout: 6, train: 2}." in said


def test_options_of_sharding_are_read_where_the_number_of_training_ranks_is_open():
    parsed = parse([*EIGHT, OPEN, f"{COPY}=2"])
    assert not unread_problems(parsed.config, named=parsed.named)


def test_one_training_rank_may_form_a_process_group():
    words = ("dag.groups={rollout: 7, train: 1}", "trainer.force_process_group=true")
    parsed = parse([*EIGHT, *words])
    assert not unread_problems(parsed.config, named=parsed.named)


def test_the_sizes_of_a_refusal_are_accepted():
    assert "set dag.groups={rollout: 4, train: 4}, or" in refusal(
        "dag.groups={rollout: 3, train: 5}"
    )
    assert groups("dag.groups={rollout: 4, train: 4}") == {"rollout": 4, "train": 4}


NODE = "{node_id: %s, func: 'siirl.dag_worker.stages:%s', dependencies: [%s], group: rollout}"


@pytest.mark.parametrize(
    ("stage", "sentence"),
    [
        ("compute_reward", "Node 'own' of the group 'rollout' rewards rows, which only ranks"),
        ("data_rebalance", "Node 'own' of the group 'rollout' moves rows between ranks, which"),
    ],
)
def test_rollout_ranks_neither_reward_rows_nor_move_them(tmp_path, stage, sentence):
    file = tmp_path / "own.yaml"
    nodes = [NODE % ("act", "generate", ""), NODE % ("own", stage, "act")]
    end = "{node_id: end, func: 'siirl.dag_worker.stages:own_rows', dependencies: [own]}"
    file.write_text(f"nodes: [{', '.join([*nodes, end])}]")
    said = refusal("dag.groups={rollout: 4, train: 4}", f"dag.workflow_file={file}")
    assert said.startswith(sentence)
    assert said.endswith("set group=train, or leave its group out.")
