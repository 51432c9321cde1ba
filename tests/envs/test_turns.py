"""Environments whose agents take turns: the contract, and the checker's messages for violations."""

import sys
from pathlib import Path

import pytest

from envs.base import EnvSpec, acting_agents, checked_turns
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
