"""Gymnasium's composed spaces behind the contract: nested observations, missions, and actions of
several decisions.
"""

import asyncio

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, decision_space
from envs.checker import check_env
from envs.gymnasium import GymnasiumEnv
from envs.gymnasium_spaces import ActionLayout, ObservationLayout
from siirl.models.action_tokenizer import ActionTokenizer


class Errands(gymnasium.Env):
    """A mission, a camera and readings in nested spaces; three decisions and four switches.

    The reward says which action arrived: the decisions are its digits.
    """

    observation_space = spaces.Dict(
        {
            "mission": spaces.Text(20),
            "robot": spaces.Dict(
                {
                    "camera": spaces.Box(0, 255, (3, 4, 3), np.uint8),
                    "sensors": spaces.Tuple(
                        (spaces.Box(-1.0, 1.0, (2,), np.float64), spaces.MultiBinary(2))
                    ),
                }
            ),
            "room": spaces.MultiDiscrete([2, 3]),
        }
    )
    action_space = spaces.MultiDiscrete([2, 3, 10], start=[1, 0, 0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(5))
        return self.seen(), {}

    def seen(self):
        return {
            "mission": f"fetch ball {self.number}",
            "robot": {
                "camera": np.full((3, 4, 3), self.number, np.uint8),
                "sensors": (np.array([0.5, -0.5]), np.array([1, 0], np.int8)),
            },
            "room": np.array([1, 2]),
        }

    def step(self, action):
        assert self.action_space.contains(action)
        digits = "".join(map(str, np.asarray(action).reshape(-1)))
        return self.seen(), float(digits), False, False, {}


class Switches(Errands):
    """Its action is a table of switches."""

    action_space = spaces.MultiBinary((2, 2))


class Pair(Errands):
    """A tuple at the top; one part has no fixed size."""

    observation_space = spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))))


class Speaks(Errands):
    """Its action is a text."""

    action_space = spaces.Text(5)


class Composed(Errands):
    """Its action is composed; the reward shows its digits."""

    action_space = spaces.Dict(
        {
            "arm": spaces.Tuple((spaces.Box(0.0, 9.0, (1, 1)), spaces.MultiBinary(1))),
            "go": spaces.Discrete(3, start=-1),
        }
    )

    def step(self, action):
        assert self.action_space.contains(action)
        (((lift,),), (grip,)), go = action["arm"], action["go"]
        return self.seen(), 100.0 * lift + 10 * grip + go, False, False, {}


class Nothing(Errands):
    """Its action is empty."""

    action_space = spaces.Dict({"none": spaces.Tuple(())})


class Table(Errands):
    """A table of whole numbers; the reward shows its digits."""

    action_space = spaces.Box(2, 5, (1, 2), np.int64)


class Endless(Errands):
    """Whole numbers without bounds."""

    action_space = spaces.Box(0, np.iinfo(np.int64).max, (1,), np.int64)


@pytest.fixture(scope="module", autouse=True)
def registered():
    for env_class in (Errands, Switches, Pair, Speaks, Composed, Nothing, Table, Endless):
        gymnasium.register(f"siirl-spaces/{env_class.__name__}-v0", env_class, max_episode_steps=15)
    yield
    for name in [name for name in gymnasium.registry if name.startswith("siirl-spaces/")]:
        del gymnasium.registry[name]


def play(name, actions):
    async def run():
        env = GymnasiumEnv(id=f"siirl-spaces/{name}-v0")
        observation, _ = await env.reset(seed=0)
        return observation, [(await env.step(action))[1] for action in actions]

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["Errands", "Switches", "Table", "Composed"])
def test_composed_spaces_keep_the_contract(name):
    check_env(GymnasiumEnv(id=f"siirl-spaces/{name}-v0"), seed=1)


def test_a_mission_is_the_instruction_and_nested_leaves_are_images_or_one_vector():
    observation, _ = play("Errands", [])
    assert observation[INSTRUCTION].startswith("fetch ball ")
    assert observation[IMAGES].shape == (1, 3, 4, 3)
    # two readings, two bits, then one-hot [1 of 2] and [2 of 3]
    assert observation[PROPRIOCEPTION].tolist() == [0.5, -0.5, 1, 0, 0, 1, 0, 0, 1]


def test_several_texts_are_lines_of_the_instruction():
    space = spaces.Tuple((spaces.Text(9), spaces.Discrete(2), spaces.Text(9)))
    seen = ObservationLayout(space, name="two").read(("go", 1, "stop"))
    assert seen[INSTRUCTION] == "go\nstop"
    assert seen[PROPRIOCEPTION].tolist() == [0.0, 1.0]


def test_a_string_space_of_a_package_is_an_instruction_too():
    class MissionSpace(spaces.Space):
        """A mission space like MiniGrid's, which is no `Text`."""

        def __init__(self):
            super().__init__(dtype=str)

    space = spaces.Dict({"mission": MissionSpace(), "direction": spaces.Discrete(4)})
    seen = ObservationLayout(space, name="grid").read({"mission": "open the door", "direction": 0})
    assert seen[INSTRUCTION] == "open the door"


def test_several_decisions_are_the_nearest_whole_numbers_counted_from_their_start():
    space = GymnasiumEnv(id="siirl-spaces/Errands-v0").spec.action_space
    assert (space.low.tolist(), space.high.tolist()) == ([-0.5] * 3, [1.5, 2.5, 9.5])
    actions = [space.low, space.high, np.array([0.4, 1.6, 6.8], np.float32)]
    assert play("Errands", actions)[1] == [100.0, 229.0, 127.0]


def test_switches_keep_the_shape_of_the_environment():
    assert play("Switches", [np.array([1, 0, 0.6, 0.4], np.float32)])[1] == [1010.0]


def test_whole_numbers_of_a_box_are_decisions_between_its_bounds():
    space = GymnasiumEnv(id="siirl-spaces/Table-v0").spec.action_space
    assert (space.low.tolist(), space.high.tolist()) == ([-0.5] * 2, [3.5] * 2)
    actions = [space.low, space.high, np.array([0.6, 2.4], np.float32)]
    assert play("Table", actions)[1] == [22.0, 55.0, 34.0]


@pytest.mark.parametrize(
    ("box", "action", "arrives"),
    [
        (spaces.Box(-1.0, 1.0, (2, 2)), [0.1, 0.2, 0.3, 0.4], [[0.1, 0.2], [0.3, 0.4]]),
        (spaces.Box(-1.0, 1.0, ()), [0.5], 0.5),
        (spaces.Box(-1.0, 1.0, (1,), np.float16), [0.5], [0.5]),
        (spaces.Box(-0.7, 0.7, (1,), np.float64), [np.float32(0.7)], [0.7]),  # rounded upwards
        (spaces.Box(-np.inf, np.inf, (1,)), [99.0], [99.0]),
    ],
)
def test_a_box_of_any_shape_and_type_is_a_float32_vector(box, action, arrives):
    layout = ActionLayout(box, name="box")
    assert layout.space.shape == (len(action),)
    assert layout.space.dtype == np.float32
    native = layout.native(np.array(action, np.float32))
    assert box.contains(native)
    np.testing.assert_allclose(native, np.array(arrives, box.dtype), rtol=1e-6)


def test_a_composed_action_is_one_vector_with_its_leaves_in_order():
    spec = GymnasiumEnv(id="siirl-spaces/Composed-v0").spec
    assert spec.action_space.low.tolist() == [0.0, -0.5, -0.5]
    assert spec.action_space.high.tolist() == [9.0, 1.5, 2.5]
    assert spec.decisions == ()  # the first is a number
    assert play("Composed", [np.array([2.5, 0.9, -0.1], np.float32)])[1] == [259.0]


NUMBERS = st.sampled_from(
    [spaces.Box(-1.0, 1.0, (2, 2)), spaces.Box(-np.inf, np.inf, (), np.float64)]
)
DECISIONS = st.sampled_from(
    [
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([[2, 3], [1, 4]]),
        spaces.MultiBinary(3),
        spaces.Box(-3, 2, (2,), np.int8),
    ]
)


def composed(leaves: st.SearchStrategy[spaces.Space]) -> st.SearchStrategy[spaces.Space]:
    return st.recursive(
        leaves,
        lambda parts: (
            st.lists(parts, min_size=1, max_size=3).map(spaces.Tuple)
            | st.dictionaries(st.sampled_from("abc"), parts, min_size=1).map(spaces.Dict)
        ),
        max_leaves=5,
    )


@given(space=composed(NUMBERS | DECISIONS), seed=st.integers(0, 99))
def test_every_action_is_a_member_of_the_environments_own_space(space, seed):
    layout = ActionLayout(space, name="any")
    layout.space.seed(seed)
    for _ in range(5):
        assert space.contains(layout.native(layout.space.sample()))


@given(space=composed(DECISIONS), data=st.data())
def test_different_decisions_are_different_actions(space, data):
    layout = ActionLayout(space, name="any")
    if isinstance(space, spaces.Discrete):
        assert layout.space == spaces.Discrete(space.n)
        return
    assert layout.space == decision_space(layout.decisions)
    choices = st.tuples(*(st.integers(0, count - 1) for count in layout.decisions))
    one, other = data.draw(choices), data.draw(choices)
    actions = [
        spaces.flatten(space, layout.native(np.array(choice, np.float32))).tolist()
        for choice in (one, other)
    ]
    assert (actions[0] == actions[1]) == (one == other)


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4), bins=st.integers(7, 64))
def test_a_policy_with_as_many_bins_as_values_reaches_every_decision(sizes, bins):
    layout = ActionLayout(spaces.MultiDiscrete(sizes), name="many")
    tokenizer = ActionTokenizer.for_space(layout.space, bins=bins)
    reached = [
        layout.native(tokenizer.decode(np.full(len(sizes), token))[0]) for token in range(bins)
    ]
    for place, size in enumerate(sizes):
        assert {int(action[place]) for action in reached} == set(range(size))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Pair", r"Sequence\(Discrete\(2\), stack=False\) at '1', which is not a vector"),
        ("Speaks", r"Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these, are supp"),
        ("Nothing", "which contain no number: there is nothing to decide"),
        ("Endless", "whole numbers with more than 4194304 values: give the space closer bounds"),
    ],
)
def test_spaces_without_a_form_in_the_contract_are_refused_with_the_remedy(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        GymnasiumEnv(id=f"siirl-spaces/{name}-v0")


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(5), -1),  # NumPy would count from the end
        (spaces.Discrete(3, start=7), 6),
        (spaces.Discrete(5), 5),
        (spaces.Discrete(5), 2.5),
        (spaces.MultiDiscrete([3, 4]), np.array([-1, 2])),
        (spaces.MultiBinary(2), np.array([7, 0])),
    ],
)
def test_a_decision_outside_its_space_is_not_another_decision(space, value):
    layout = ObservationLayout(space, name="x")
    with pytest.raises(ValueError, match="is not a member of"):
        layout.read(value)


@pytest.mark.parametrize(
    ("space", "value", "vector"),
    [
        (spaces.Discrete(3, start=-1), np.array([1]), [0, 0, 1]),
        (spaces.Discrete(3), 1.0, [0, 1, 0]),
        (spaces.MultiDiscrete([2, 2]), [1, 0], [0, 1, 1, 0]),
        (spaces.MultiBinary(2), np.array([True, False]), [1, 0]),
        (spaces.Box(-1.0, 1.0, (2,)), [3, 4], [3, 4]),  # beyond the bounds, as simulators overshoot
    ],
)
def test_members_of_another_type_are_read(space, value, vector):
    assert ObservationLayout(space, name="x").read(value)[PROPRIOCEPTION].tolist() == vector


def test_a_text_is_a_text_and_has_no_half_of_a_pair():
    space = spaces.Dict({"mission": spaces.Text(9), "speed": spaces.Box(-1.0, 1.0, (1,))})
    layout = ObservationLayout(space, name="x")
    assert layout.read({"mission": "go\ud800", "speed": [0.0]})[INSTRUCTION] == "go?"
    with pytest.raises(TypeError, match="None where a text is expected"):
        layout.read({"mission": None, "speed": [0.0]})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 1.0, (0,)),
        spaces.Dict(
            {"seen": spaces.Box(0, 255, (8, 8, 3), np.uint8), "felt": spaces.Box(-1.0, 1.0, (0,))}
        ),
    ],
)
def test_observations_without_a_number_are_refused(space):
    with pytest.raises(ValueError, match="whose vectors contain no number: leave them out"):
        ObservationLayout(space, name="x")


def test_actions_without_a_number_are_refused():
    with pytest.raises(ValueError, match="contain no number: there is nothing to decide"):
        ActionLayout(spaces.Box(-1.0, 1.0, (0,)), name="x")
