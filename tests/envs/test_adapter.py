"""A class with `reset(dp_rank, ddp_world_size, seed, options)` and a 3-value `step` as an
`Environment`.
"""

import asyncio

import numpy as np
import pytest
from gymnasium import spaces

from envs.adapter import ThreeValueAdapter, adapt
from envs.base import EnvSpec, FrameRequest

SPEC = EnvSpec(
    "sums", ("easy", "hard"), spaces.Discrete(100), spaces.Discrete(10), max_episode_steps=4
)
DEBATE = EnvSpec(
    "debate",
    ("debate",),
    spaces.Discrete(10),
    spaces.Discrete(10),
    max_episode_steps=9,
    reports_success=False,
    num_agents=2,
)


class Sums:
    """Plain methods, one agent: the state is the sum of the actions; 10 is success."""

    def __init__(self, start=0):
        self.start, self.calls = start, []

    def reset(self, dp_rank, ddp_world_size, seed=None, options=None):
        self.calls.append((dp_rank, ddp_world_size, seed, options))
        self.total = self.start
        return self.total

    def step(self, actions):
        self.total += actions
        return (
            self.total,
            0.5,
            {"terminated": self.total >= 10, "success": self.total == 10, "note": "kept"},
        )


class Debate:
    """The form of MathEnv: async, an array with one entry per agent."""

    n_agents = 2

    async def reset(self, dp_rank, ddp_world_size, seed=None, options=None):
        return np.array([seed for _ in range(self.n_agents)], dtype=np.object_)

    async def step(self, actions):
        observations = np.array(actions, dtype=np.object_)
        return (
            observations,
            [float(action) for action in actions],
            [{"done": action > 5} for action in actions],
        )


def test_reset_passes_on_rank_seed_and_task():
    inner = Sums()
    env = ThreeValueAdapter(inner, spec=SPEC, dp_rank=1, ddp_world_size=4)
    observation, info = asyncio.run(env.reset(seed=5, options={"task": "hard"}))
    assert inner.calls == [(1, 4, 5, {"task": "hard"})]
    assert (observation, info) == (0, {"task": "hard"})


def test_infos_say_when_an_episode_ends():
    async def play():
        env = ThreeValueAdapter(Sums(), spec=SPEC)
        await env.reset(seed=0)
        return [await env.step(3), await env.step(7)]

    first, second = asyncio.run(play())
    assert first == (
        3,
        0.5,
        False,
        False,
        {"terminated": False, "success": False, "note": "kept", "task": "easy"},
    )
    assert second[:4] == (10, 0.5, True, False)
    assert second[4]["success"]


def test_limit_of_the_spec_truncates():
    async def play():
        env = ThreeValueAdapter(Sums(), spec=SPEC)
        await env.reset(seed=0)
        return await env.step_chunk([0, 0, 0, 0, 0])

    observation, reward, terminated, truncated, info = asyncio.run(play())
    assert (observation, reward, terminated, truncated, info["executed"]) == (
        0,
        2.0,
        False,
        True,
        4,
    )


def test_several_agents_get_one_entry_each():
    async def play():
        env = ThreeValueAdapter(Debate(), spec=DEBATE)
        observation, _ = await env.reset(seed=3)
        return observation, await env.step([1, 7]), await env.step([6, 7])

    start, one_done, all_done = asyncio.run(play())
    assert start == [3, 3]
    assert one_done[0] == [1, 7]
    assert one_done[1].tolist() == [1.0, 7.0]
    assert (one_done[2], all_done[2]) == (False, True)
    assert all_done[4]["agents"] == [{"done": True}, {"done": True}]


def test_rewards_of_several_agents_are_summed_over_a_chunk():
    async def play():
        env = ThreeValueAdapter(Debate(), spec=DEBATE)
        await env.reset(seed=3)
        return await env.step_chunk([[1, 2], [3, 4]])

    assert asyncio.run(play())[1].tolist() == [4.0, 6.0]


def test_constructor_arguments_reach_the_class():
    env = adapt(Sums, spec=SPEC)(start=7)
    assert asyncio.run(env.reset(seed=0))[0] == 7


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": "hrd"}, r"Unknown task 'hrd'\. Did you mean 'hard'\?"),
        ({"level": 3}, r"Unknown reset option 'level'\."),
        ({"frames": {"video": FrameRequest(1, 8)}}, "has no images"),
    ],
)
def test_options_that_it_cannot_serve_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        asyncio.run(ThreeValueAdapter(Sums(), spec=SPEC).reset(seed=0, options=options))


def test_options_that_the_class_names_are_passed_on():
    inner = Sums()
    asyncio.run(
        ThreeValueAdapter(inner, spec=SPEC, options=["level"]).reset(seed=0, options={"level": 3})
    )
    assert inner.calls[0][3] == {"task": "easy", "level": 3}


class FiveValues(Sums):
    """Gymnasium's step."""

    def step(self, actions):
        return 0, 0.0, False, False, {}


class NoInfos(Sums):
    """Returns None in place of the infos."""

    def step(self, actions):
        return 0, 0.0, None


@pytest.mark.parametrize(
    ("inner", "sentence"),
    [
        (FiveValues(), r"step of FiveValues must return \(observation, rewards, infos\)"),
        (NoInfos(), "infos must be a dict"),
    ],
)
def test_another_form_is_refused_with_what_was_expected(inner, sentence):
    async def play():
        env = ThreeValueAdapter(inner, spec=SPEC)
        await env.reset(seed=0)
        await env.step(1)

    with pytest.raises(ValueError, match=sentence):
        asyncio.run(play())


def test_wrong_number_of_actions_is_refused():
    async def play():
        spec = EnvSpec(
            "debate", ("debate",), spaces.Discrete(10), spaces.Discrete(10), 9, num_agents=2
        )
        env = ThreeValueAdapter(Debate(), spec=spec)
        await env.reset(seed=3)
        await env.step([1])

    with pytest.raises(ValueError, match="a list of 2 actions, one per agent"):
        asyncio.run(play())
