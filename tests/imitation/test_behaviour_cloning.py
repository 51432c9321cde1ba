"""Rows of behaviour cloning from demonstrations."""

import numpy as np

from siirl.imitation.behaviour_cloning import CloningData, Demonstration
from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.policy import Policy


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
