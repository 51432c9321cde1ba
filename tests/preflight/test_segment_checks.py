"""Invalid jobs by segments: each refusal with its value, place and remedy."""

import dataclasses
import re
from collections.abc import Sequence

import gymnasium
import pytest

from envs.base import PROPRIOCEPTION, EnvSpec
from siirl.errors import ConfigError
from siirl.params.parser import parse, parse_config
from siirl.preflight.config_checks import config_problems
from siirl.preflight.configured_graph import load_graph
from siirl.preflight.environment_checks import environment_problems
from siirl.preflight.unread import unread_in_domain, unread_problems

JOB = ("env=gymnasium", "env.id=CartPole-v1", "pipeline=ppo", "trainer=classic_control")
SPEC = EnvSpec(
    name="gymnasium",
    tasks=("CartPole-v1",),
    observation_space=gymnasium.spaces.Dict({PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (4,))}),
    action_space=gymnasium.spaces.Discrete(2),
    max_episode_steps=500,
    reports_success=False,
)


def problems(*overrides: str, job: Sequence[str] = JOB) -> list[str]:
    parsed = parse([*job, *overrides])
    return [
        str(problem)
        for problem in (
            *config_problems(parsed.config),
            *unread_problems(parsed.config, named=parsed.named),
            *unread_in_domain(parsed.config, named=parsed.named, text=False),
        )
    ]


def test_the_preset_is_sound():
    assert problems() == []
    assert [str(each) for each in environment_problems(parse_config([*JOB]), SPEC)] == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["actor_rollout_ref.rollout.n=4"],
            "n_steps=32 continues one episode in each environment, but "
            "actor_rollout_ref.rollout.n=4",
        ),
        (["reward=srpo"], "n_steps=32 rewards parts of episodes, but reward.name=srpo scores whole"),
        (
            ["data.task_sampling=learnable"],
            "n_steps=32 has parts of episodes, but data.task_sampling=learnable counts successes",
        ),
        (
            ["data.train_batch_size=24"],
            "in each of data.train_batch_size=24 environments: 24 on a rank, but a rank has 16: raise "
            "env.envs_per_server from 8 to 12, or env.num_servers from 2 to 3",
        ),
        (
            ["dag.groups={rollout: 1, train: 1}", "trainer.n_gpus_per_node=2"],
            "n_steps=32 rolls out on the training ranks, between two updates",
        ),
        (
            ["actor_rollout_ref.actor.ppo_mini_batch_size=96"],
            "ppo_mini_batch_size=96 does not divide data.train_batch_size=8 x "
            "actor_rollout_ref.rollout.n_steps=32 = 256 decisions: make it 64",
        ),
        (
            ["trainer.record_episodes=3"],
            "trainer.record_episodes=3 is read by training on whole episodes, but "
            "actor_rollout_ref.rollout.n_steps=32 cuts them",
        ),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_a_cut_are_refused(overrides, message):
    assert any(message in problem for problem in problems(*overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["pipeline=grpo"],
        ["pipeline=grpo", "actor_rollout_ref.rollout.n=2"],
        ["pipeline=dapo", "algorithm.adv_estimator=rloo"],
        ["pipeline=ppo", "algorithm.adv_estimator=rloo"],
        ["pipeline=remax", "algorithm.adv_estimator=rloo"],
        ["pipeline=remax"],
        ["pipeline=ppo", "algorithm.adv_estimator=remax"],
        ["pipeline=grpo", "algorithm.adv_estimator=remax", "actor_rollout_ref.rollout.n=4"],
        ["pipeline=grpo", "algorithm.adv_estimator=reinforce_plus_plus"],
        ["pipeline=dapo", "algorithm.adv_estimator=reinforce_plus_plus"],
    ],
)
@pytest.mark.parametrize("preset", ["mujoco_control", "classic_control"])
def test_a_cut_is_refused_with_two_ways_out_that_hold_where_advantages_need_whole_episodes(
    preset: str, overrides: list[str]
) -> None:
    job = ("env=gymnasium", "env.id=CartPole-v1", f"trainer={preset}")
    (problem,) = problems(*overrides, job=job)
    found = re.search(
        r"(?:the two exclude each other|only a critic estimates the rewards behind a cut, but "
        r"pipeline=\w+ has none): use (.+), or (.+) for whole episodes",
        problem,
    )
    assert found is not None
    assert "algorithm.adv_estimator=gae" in found[1]
    assert "actor_rollout_ref.rollout.n_steps=null" in found[2]
    for way_out in found.groups():
        changed = dict(setting.split("=", 1) for setting in (*overrides, *way_out.split()))
        words = [f"{key}={value}" for key, value in changed.items()]
        assert problems(*words, job=job) == []
        load_graph(parse_config([*job, *words]))


def test_a_baseline_of_whole_episodes_does_not_fit_a_cut():
    config = parse_config([*JOB[:2], "pipeline=remax", "trainer=classic_control"])
    with pytest.raises(
        ConfigError,
        match=r"'greedy_baseline' of graph 'remax' plays whole greedy episodes.*n_steps=32 cuts "
        "episodes: set it to null, or use pipeline=ppo",
    ):
        load_graph(config)


@pytest.mark.parametrize("raised", ["env.envs_per_server=23", "env.num_servers=6"])
def test_either_value_that_the_refusal_of_too_few_environments_names_is_enough(raised):
    """45 environments on 2 ranks, of which one has 2 servers and the other 1."""
    job = ["data.train_batch_size=45", "trainer.n_gpus_per_node=2", "env.num_servers=3"]
    [refusal] = [problem for problem in problems(*job) if "on a rank" in problem]
    assert refusal.endswith(
        "raise env.envs_per_server from 8 to 23, or env.num_servers from 3 to 6."
    )
    assert not any("on a rank" in problem for problem in problems(*job, raised))


def test_an_evaluation_has_no_segments_and_no_mini_batches():
    config = parse_config(
        [*JOB, "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.ppo_mini_batch_size=96"]
    )
    assert len(config_problems(config)) == 2
    assert config_problems(config, trains=False) == []
    spec = dataclasses.replace(SPEC, replayable=False)
    assert environment_problems(config, spec, trains=False) == []


def test_an_environment_that_cannot_be_replayed_is_refused():
    spec = dataclasses.replace(SPEC, replayable=False)
    (problem,) = environment_problems(parse_config([*JOB]), spec)
    assert "env=gymnasium cannot be replayed (EnvSpec.replayable): leave it out" in str(problem)
