"""Environments whose agents take turns: the contract, and the checker's messages for violations."""

import asyncio
import sys
from pathlib import Path

import pytest

from envs.answer_checks import fault_of_step
from envs.base import EnvSpec, WrongForm, acting_agents, checked_turns
from envs.checker import check_env
from envs.text import text_spec

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

from scripted_text import EarlyRewardEnv, RelayEnv

SPEC = RelayEnv().spec


def test_an_environment_whose_agents_take_turns_keeps_the_contract():
    check_env(RelayEnv(), seed=3)


class NobodyActs(RelayEnv):
    """Gives no observation at reset."""

    async def reset(self, *, seed=None, options=None):
        _, info = await super().reset(seed=seed, options=options)
        return [None, None], info


class TakesAnyTurn(RelayEnv):
    """Takes the first action, from any agent."""

    async def step(self, action):
        if self.turns == 0:
            action = [action[0] or "", None]
        return await super().step(action)


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (NobodyActs, "no agent acts, but the episode has not ended"),
        (TakesAnyTurn, "step without an action of an acting agent must raise ValueError"),
        (EarlyRewardEnv, "before its first action"),
    ],
)
def test_the_checker_names_what_is_wrong_with_the_turns(env, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_env(env(), seed=3)


class ListRewards(RelayEnv):
    """Its rewards are a list."""

    def rewards(self, done):
        return [0.5, 1] if done else [0.25, 0]


class TextReward(RelayEnv):
    """The reward of its second agent is a text."""

    def rewards(self, done):
        return [0.5, "1"]


class OneReward(RelayEnv):
    """Both agents have one reward together."""

    def rewards(self, done):
        return 0.5


class ThreeRewards(RelayEnv):
    """Its rewards are those of another number of agents."""

    def rewards(self, done):
        return [0.5, 1.0, 1.5]


class UnevenRewards(RelayEnv):
    """The second agent has two rewards."""

    def rewards(self, done):
        return [0.5, [1.0, 1.5]]


async def chunk_of_three(environment):
    await environment.reset(seed=3)
    return await environment.step_chunk([["3", None], [None, "4"], ["5", None]])


def test_a_list_of_one_reward_for_each_agent_is_summed_over_a_chunk():
    _, rewards, *_ = result = asyncio.run(chunk_of_three(ListRewards()))
    assert rewards.tolist() == [1.0, 1.0]
    assert fault_of_step(result, spec=SPEC, num_actions=3) is None


@pytest.mark.parametrize("env", [TextReward, OneReward, ThreeRewards, UnevenRewards])
def test_rewards_that_are_not_one_number_for_each_agent_are_refused(env):
    sentence = r"\.step returned the reward .*0\.5.*: return 2 numbers, one for each agent\."
    with pytest.raises(WrongForm, match=sentence):
        asyncio.run(chunk_of_three(env()))


def test_those_with_an_observation_act():
    assert acting_agents([None, {"messages": []}], spec=SPEC) == [1]
    assert acting_agents({"messages": []}, spec=text_spec_of_one()) == [0]


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ("text", "a list of 2 actions"),
        (["a", None, None], "a list of 2 actions"),
        ([None, None], "the turn of agent 'caller'"),
        (["a", "b"], "Agent 'answerer' waits"),
    ],
)
def test_an_action_out_of_turn_is_refused(action, sentence):
    with pytest.raises(ValueError, match=sentence):
        checked_turns(action, acting=[0], spec=SPEC)


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "b", "c")])
def test_names_that_do_not_name_all_agents_are_refused(names):
    with pytest.raises(ValueError, match="agent_names"):
        EnvSpec(
            "x",
            ("x",),
            SPEC.observation_space,
            SPEC.action_space,
            max_episode_steps=1,
            num_agents=2,
            agent_names=names,
        )


def text_spec_of_one() -> EnvSpec:
    return text_spec(name="x", tasks=["x"], max_turns=1, max_action_characters=9)
