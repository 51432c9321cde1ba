"""The columns of a batch: dtype, axes, and the axis along which rows differ in length.

Rows are padded to the longest row of their batch, so that a column can be a tensor. This table
alone defines which axis is padded, on which side and with which value. A column that is not in the
table is kept as it is; `register_column` adds a user's column that runs along the tokens.
"""

# B trajectory, T response token, C chunk of actions (one observation each), P prompt token, L
# instruction word, N camera, H height, W width, J joint (proprioception value), D embedding, K
# patch of a picture, V value of a patch

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from siirl.errors import ConfigError


class Layout(Enum):
    """Meaning of axis 1 of a column; axis 0 is the row, further axes have one size for all rows."""

    FIXED = "fixed"
    """Not ragged: one value or one array of fixed shape per row."""
    TOKEN = "token"
    """Response tokens, padded on the right; T of them."""
    CHUNK = "chunk"
    """Chunks of actions, padded on the right; C of them, T / C tokens each."""
    PROMPT = "prompt"
    """Prompt tokens, padded on the left; P of them."""
    SEQUENCE = "sequence"
    """Prompt then response, P + T tokens, padded on both sides."""
    WORDS = "words"
    """Instruction words, padded on the right; never cut, because a policy may need them all."""
    PICTURES = "pictures"
    """Patches of the pictures of a prompt, padded on the right; never cut."""
    TEXT = "text"
    """A string per row, not a tensor."""


@dataclass(frozen=True)
class Column:
    """Dtype, axes and meaning of a column."""

    dtype: type[np.generic] | None
    axes: str
    layout: Layout
    meaning: str
    or_dtype: type[np.generic] | None = None
    """Another dtype that is kept as it is."""

    def array(self, value: object, *, name: str) -> NDArray[np.generic]:
        """`value` as an array of this column's dtype.

        Raises:
            ConfigError: The conversion would lose the kind of number (float pixels into uint8).
        """
        array = np.asarray(value)
        if self.dtype is None or array.dtype in (self.dtype, self.or_dtype):
            return array
        if not np.can_cast(array.dtype, self.dtype, casting="same_kind"):
            kinds = [np.dtype(each).name for each in (self.dtype, self.or_dtype) if each]
            raise ConfigError(
                f"Column {name!r} ({self.axes}: {self.meaning}) is {' or '.join(kinds)}, but got "
                f"{array.dtype.name}."
            )
        return array.astype(self.dtype)


COLUMNS: dict[str, Column] = {
    # Identity
    "uid": Column(None, "B", Layout.TEXT, "unique id of the sample over the whole run"),
    "index": Column(np.int64, "B", Layout.FIXED, "group id: samples of one prompt share it"),
    "policy_version": Column(np.int64, "B", Layout.FIXED, "version of the policy that acted"),
    "policy_versions": Column(
        np.int64, "B T", Layout.TOKEN, "version of the policy that produced each token"
    ),
    "seed": Column(np.int64, "B", Layout.FIXED, "seed of the environment"),
    "task_id": Column(np.int64, "B", Layout.FIXED, "position of the task in env.tasks"),
    "trial_id": Column(np.int64, "B", Layout.FIXED, "number of earlier prompts of this task"),
    "task_name": Column(None, "B", Layout.TEXT, "name of the task"),
    # Observations of the policy
    "prompts": Column(np.int64, "B P", Layout.PROMPT, "prompt tokens"),
    "input_ids": Column(np.int64, "B P+T", Layout.SEQUENCE, "prompt and response tokens"),
    "attention_mask": Column(np.int64, "B P+T", Layout.SEQUENCE, "1 at tokens, 0 at padding"),
    "position_ids": Column(
        np.int64,
        "B P+T",
        Layout.SEQUENCE,
        "positions of the tokens; for a vision-language model, [B P+T 3]: time, height and width",
    ),
    "picture_patches": Column(
        np.uint8, "B K V", Layout.PICTURES, "patches of the pictures in the prompt"
    ),
    "picture_grids": Column(
        np.int64,
        "B K 2",
        Layout.PICTURES,
        "height and width, in patches, of the picture of each patch; 0 at padding",
    ),
    "picture_number": Column(
        np.int64, "B", Layout.FIXED, "digest of the pictures in the prompt, 0 for none"
    ),
    "pixel_values": Column(
        np.uint8, "B C N H W 3", Layout.CHUNK, "camera images at the start of each chunk"
    ),
    "proprioception": Column(
        np.float32, "B C J", Layout.CHUNK, "proprioception at the start of each chunk"
    ),
    "instruction_ids": Column(np.int64, "B L", Layout.WORDS, "words of the instruction"),
    "chunk_instruction_ids": Column(
        np.int64,
        "B C L",
        Layout.CHUNK,
        "words of the instruction at the start of each chunk, if it may change",
    ),
    # Decisions of the policy
    "responses": Column(
        np.int64,
        "B T",
        Layout.TOKEN,
        "tokens of the policy; for a continuous distribution its choices, [B T] or [B T choice]",
        or_dtype=np.float32,
    ),
    "response_ids": Column(np.int64, "B T", Layout.TOKEN, "another name of responses"),
    "response_mask": Column(
        np.int64, "B T", Layout.TOKEN, "1 at tokens of the policy; for robots, of executed actions"
    ),
    "rollout_log_probs": Column(
        np.float32, "B T", Layout.TOKEN, "log-probs under the policy and temperature that acted"
    ),
    "old_log_probs": Column(np.float32, "B T", Layout.TOKEN, "log-probs before the update"),
    "ref_log_prob": Column(np.float32, "B T", Layout.TOKEN, "log-probs of the reference policy"),
    # Outcome of the episode
    "finish_step": Column(np.int64, "B", Layout.FIXED, "environment steps of the episode"),
    "complete": Column(np.bool_, "B", Layout.FIXED, "success"),
    "graded": Column(
        np.bool_,
        "B",
        Layout.FIXED,
        "text: whether the environment reported success and return; otherwise both are 0",
    ),
    "truncated": Column(np.bool_, "B", Layout.FIXED, "ended by the limit of steps"),
    "env_return": Column(np.float32, "B", Layout.FIXED, "sum of the environment's rewards"),
    "env_rewards": Column(
        np.float32,
        "B T",
        Layout.TOKEN,
        "the environment's reward of a turn or chunk, at its last token",
    ),
    "oracle_distance": Column(
        np.float32, "B", Layout.FIXED, "true distance to the goal; for benchmarks only"
    ),
    "video_embedding": Column(np.float32, "B D", Layout.FIXED, "embedding of the episode's video"),
    "token_level_scores": Column(
        np.float32, "B T", Layout.TOKEN, "score, at the last token or where the environment gave it"
    ),
    "token_level_rewards": Column(np.float32, "B T", Layout.TOKEN, "score less penalties"),
    "values": Column(np.float32, "B T", Layout.TOKEN, "value estimates"),
    "value_mask": Column(
        np.bool_,
        "B T",
        Layout.TOKEN,
        "1 at the first token of each decision, which has a value",
    ),
    "final_pixel_values": Column(
        np.uint8, "B N H W 3", Layout.FIXED, "camera images after the last decision of a row"
    ),
    "final_proprioception": Column(
        np.float32, "B J", Layout.FIXED, "proprioception after the last decision of a row"
    ),
    "final_instruction_ids": Column(
        np.int64,
        "B L",
        Layout.FIXED,
        "words of the instruction after the last decision of a row, if it may change",
    ),
    "bootstrapped": Column(
        np.bool_,
        "B",
        Layout.FIXED,
        "whether rewards follow the row: it was cut or truncated, and the episode did not "
        "terminate",
    ),
    "bootstrap_values": Column(
        np.float32, "B", Layout.FIXED, "value of the state after a row; 0 after termination"
    ),
    "reward_baselines": Column(
        np.float32, "B", Layout.FIXED, "reward of a greedy rollout of the same prompt"
    ),
    "returns": Column(np.float32, "B T", Layout.TOKEN, "targets of the value function"),
    "advantages": Column(np.float32, "B T", Layout.TOKEN, "advantages"),
}

UNKNOWN = Column(None, "B …", Layout.FIXED, "a column that is not in the table")


def column(name: str) -> Column:
    """The entry of a column; `UNKNOWN` if it is not registered."""
    return COLUMNS.get(name, UNKNOWN)


def register_column(name: str, entry: Column) -> None:
    """Register a user's column, for example one with a value per token.

    Raises:
        ConfigError: The name is taken by another column.
    """
    if COLUMNS.get(name, entry) != entry:
        raise ConfigError(
            f"Column {name!r} is already {COLUMNS[name].axes} ({COLUMNS[name].meaning}). Choose "
            "another name."
        )
    COLUMNS[name] = entry
