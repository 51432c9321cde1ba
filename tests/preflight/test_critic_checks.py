"""Critics, baselines, dynamic sampling and the length penalty: refusals with
remedies, and notices.
"""

import re

import pytest

from siirl.params.critic_sizes import critic_steps, critic_update, describe_critic
from siirl.params.parser import parse, parse_config
from siirl.params.registered_names import ESTIMATORS
from siirl.preflight.critic_checks import (
    critic_problems,
    estimator_problems,
    overlong_problems,
)
from siirl.preflight.unread import unread_problems

MUJOCO, SMALL = (
    "env=metaworld",
    (
        "data.train_batch_size=12",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=3",
    ),
)


def problems(*overrides, text=False):
    parsed = parse([MUJOCO, *SMALL, *overrides])
    config = parsed.config
    unread = unread_problems(config, named=parsed.named)
    rollout = config.actor_rollout_ref.rollout
    found = [
        *estimator_problems(config.algorithm, config.dag, built_in=ESTIMATORS),
        *critic_problems(config.critic, config.data, rollout),
        *unread,
        *overlong_problems(config.algorithm, config.data, config.env, text=text),
    ]
    return [str(problem) for problem in found]


@pytest.mark.parametrize("pipeline", ["embodied_srpo", "grpo", "ppo", "dapo", "remax"])
def test_a_pipeline_as_it_ships_is_fine(pipeline):
    assert problems(f"pipeline={pipeline}") == problems(f"pipeline={pipeline}", text=True) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["pipeline=grpo", "algorithm.adv_estimator=gae"],
            "gae needs the values of a critic, which pipeline=grpo does not provide",
        ),
        (["pipeline=dapo", "algorithm.adv_estimator=gae"], "use pipeline=ppo"),
        (["pipeline=grpo", "algorithm.adv_estimator=remax"], "use pipeline=remax"),
        (["pipeline=ppo", "algorithm.adv_estimator=remax"], "use pipeline=remax"),
        (
            ["pipeline=ppo", "algorithm.adv_estimator=grpo"],
            "the values of a critic, which algorithm.adv_estimator=grpo does not read",
        ),
        (
            ["pipeline=remax", "algorithm.adv_estimator=rloo"],
            "reward_baselines, .* which algorithm.adv_estimator=rloo does not read",
        ),
        (
            ["pipeline=grpo", "trainer.critic_warmup=2"],
            "trainer.critic_warmup=2 is read only with a critic, but pipeline=grpo has none",
        ),
        (
            ["pipeline=grpo", "critic.optim.lr=0.1"],
            "critic.optim.lr=0.1 is read only with a critic, but pipeline=grpo has none",
        ),
        (
            ["pipeline=ppo", "critic.ppo_mini_batch_size=5"],
            "critic.ppo_mini_batch_size=5 does not divide data.train_batch_size=12 .*make it",
        ),
        (
            ["pipeline=grpo", "algorithm.filter.max_refills=2"],
            "max_refills=2 is read by DAPO's dynamic sampling, but pipeline=grpo has none",
        ),
        (
            ["pipeline=grpo", "algorithm.filter.metric=success"],
            "metric=success is read by DAPO's dynamic sampling",
        ),
        (
            ["pipeline=dapo", "algorithm.overlong.buffer=64"],
            "buffer=64 counts tokens of text, but env=metaworld takes",
        ),
    ],
)
def test_an_impossible_setting_is_refused_with_its_remedy(overrides, message):
    (found,) = problems(*overrides)
    assert re.search(message, found), found


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["pipeline=grpo", "algorithm.overlong.buffer=64"],
            "has no effect while algorithm.overlong.penalty=0",
        ),
        (
            ["pipeline=dapo", "algorithm.overlong.buffer=64", "data.max_response_length=32"],
            "is more than data.max_response_length=32",
        ),
    ],
)
def test_an_impossible_buffer_is_refused(overrides, message):
    (found,) = problems(*overrides, text=True)
    assert message in found


@pytest.mark.parametrize("pipeline", ["grpo", "ppo", "remax"])
def test_a_rule_of_filters_is_refused_where_no_filter_reads_it(pipeline):
    (found,) = problems(f"pipeline={pipeline}", "algorithm.filter.name=zero_variance")
    assert found.startswith(
        "algorithm.filter.name=zero_variance is read by pipeline=dapo and embodied_srpo, which "
        "drop groups"
    )
    assert [
        problems(f"pipeline={name}", "algorithm.filter.name=truncation")
        for name in ("dapo", "embodied_srpo")
    ] == [[], []]


def test_a_users_graph_may_provide_anything():
    own = "dag.custom_pipeline_fn=my_graphs:mine"
    assert (
        problems(
            own,
            "algorithm.adv_estimator=gae",
            "trainer.critic_warmup=3",
            "algorithm.filter.max_refills=1",
        )
        == []
    )


def test_a_users_estimator_may_read_the_critics_values():
    assert problems("pipeline=ppo", "algorithm.adv_estimator=mine") == []


def test_the_critic_takes_the_actors_sizes_unless_it_has_its_own():
    config = parse_config(
        [
            "pipeline=ppo",
            *SMALL,
            "actor_rollout_ref.actor.ppo_epochs=2",
            "critic.micro_batch_size=5",
        ]
    )
    update = critic_update(config.critic, config.actor_rollout_ref.actor)
    assert (update.epochs, update.prompts_per_mini_batch, update.micro_batch_size) == (2, 3, 5)


def test_the_plan_has_the_critics_steps_rate_and_warm_up():
    config = parse_config(
        [
            "pipeline=ppo",
            *SMALL,
            "critic.ppo_epochs=2",
            "critic.ppo_mini_batch_size=6",
            "trainer.critic_warmup=3",
            "critic.optim.lr=0.1",
            "critic.optim.scheduler=constant",
        ]
    )
    assert critic_steps(config, rows=12 * 8) == 4
    assert describe_critic(config) == (
        "2 x 2 mini-batches of 48 trajectories, rate 0.1, constant, cliprange_value 0.5; the first "
        "3 steps train it alone (trainer.critic_warmup)"
    )
    assert describe_critic(config, nodes=2).startswith("2 nodes x 2 x 2 mini-batches of 48")


def test_ppos_critic_learns_at_the_actors_rate_unless_it_has_its_own():
    rate = "actor_rollout_ref.actor.optim.lr=0.004"
    assert parse_config(["pipeline=ppo", rate]).critic.optim.lr == 0.004
    assert parse_config(["pipeline=ppo", rate, "critic.optim.lr=0.1"]).critic.optim.lr == 0.1
