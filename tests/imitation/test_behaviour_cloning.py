"""Rows of behaviour cloning from demonstrations."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from envs.base import PROPRIOCEPTION, EnvSpec
from siirl.imitation.behaviour_cloning import CloningData, Demonstration, clone
from siirl.models.action_tokenizer import ActionTokenizer, ContinuousActions
from siirl.models.policy import Policy
from siirl.models.policy_loader import build_policy


class ReadingPolicy(Policy):
    """Reads the length of the instruction; chunks of two actions."""

    chunk_length = 2
    action_tokenizer = ActionTokenizer(bins=3, low=(0.0,), high=(1.0,))

    def tokenize_instruction(self, text):
        return np.array([len(text)])

    def forward(self, **observation):
        raise AssertionError("no action is asked for")


def test_each_row_has_the_instruction_of_its_step_and_the_last_action_is_repeated():
    shown = Demonstration(
        task="walk",
        seed=0,
        pixel_values=np.zeros((2, 1, 4, 4, 3), np.uint8),
        proprioception=np.zeros((2, 3), np.float32),
        instructions=("left", "right"),
        actions=np.array([[0.0], [1.0]], np.float32),
    )
    rows = CloningData.from_demonstrations([shown], ReadingPolicy())
    assert rows.instruction_ids.tolist() == [[4], [5]]
    assert rows.actions.tolist() == [[[0.0], [1.0]], [[1.0], [1.0]]]


def test_noise_of_the_targets_is_finite_without_bounds():
    data = CloningData(
        pixel_values=torch.zeros(1, 0),
        proprioception=torch.zeros(1, 3),
        instruction_ids=torch.zeros(1, 1),
        actions=torch.zeros(1, 500, 2),
        code=ContinuousActions(low=(-np.inf, -3.0), high=(np.inf, 3.0)),
    )
    generator = torch.Generator().manual_seed(0)
    noise = data.targets(torch.tensor([0]), noise=0.1, generator=generator).view(500, 2)
    assert noise.std(0).tolist() == pytest.approx([0.1, 0.1], rel=0.15)


@pytest.mark.parametrize("updates", [1, 9, 10, 11])
def test_a_policy_is_cloned_by_any_number_of_updates(updates):
    space = Dict({PROPRIOCEPTION: Box(-1, 1, (3,), np.float32)})
    spec = EnvSpec("walk", ("walk",), space, Box(-1, 1, (1,), np.float32), max_episode_steps=2)
    policy = build_policy("tiny_vla", path=None, spec=spec, seed=0, options={"width": 4})
    shown = Demonstration(
        task="walk",
        seed=0,
        pixel_values=np.zeros((2, 0), np.uint8),
        proprioception=np.zeros((2, 3), np.float32),
        instructions=("", ""),
        actions=np.array([[0.0], [1.0]], np.float32),
    )
    data = CloningData.from_demonstrations([shown], policy)
    fits = list(clone(policy, data, steps=updates, batch_rows=2, learning_rate=1e-3, seed=0))
    assert len(fits) == updates
