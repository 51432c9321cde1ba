"""pi0 and pi0.5: VLA policies whose action expert denoises chunks of actions, for RL.

The policy is in `siirl.models.flow_vla`, the networks in `siirl.models.pi_network`, and the reader
of LeRobot's checkpoints in `siirl.models.pi_checkpoint`.
"""

# N observation, L token, P number of the state

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.errors import ConfigError
from siirl.files.weight_files import TOKENIZER_FILE
from siirl.models.flow_vla import (
    PADDING,
    FlowSettings,
    FlowVLA,
    InputOutputFormat,
    NormalisedActions,
)
from siirl.models.pi_network import Pi0Network, Pi05Network, PiNetwork
from siirl.models.pi_parts import NetworkShape
from siirl.models.prefix_layers import Prefix

BINS = np.linspace(-1, 1, 256 + 1)[:-1]
"""Lower ends of the bins of a scaled state (openpi's `PaligemmaTokenizer.tokenize`)."""
CHARACTERS = 4
"""Characters of an instruction that are kept for each token of a prompt; English has about 4."""


class Pi(FlowVLA):
    """Common base of pi0 and pi0.5.

    Args:
        network: `Pi0Network` or `Pi05Network`.
        feature_size: Width of `Prefix.features_NW`.
        io_format: Format of observations and chunks.
        actions: Coding of actions.
        flow: Settings of sampling from the flow.
        folder: Folder of the files beside the weights.
        tokenizer_file: Tokenizer file of PaliGemma.
    """

    def __init__(
        self,
        network: PiNetwork,
        *,
        feature_size: int,
        io_format: InputOutputFormat,
        actions: NormalisedActions,
        flow: FlowSettings,
        folder: Path,
        tokenizer_file: Path,
    ) -> None:
        super().__init__(
            network,
            feature_size=feature_size,
            io_format=io_format,
            actions=actions,
            flow=flow,
            folder=folder,
        )
        self.tokenizer_file = tokenizer_file

    def describe(self, folder: Path, *, notes: Mapping[str, Any]) -> None:
        """See `FlowVLA.describe`; the tokenizer is copied too."""
        super().describe(folder, notes=notes)
        shutil.copyfile(self.tokenizer_file, folder / TOKENIZER_FILE)


class Pi0(Pi):
    """pi0; its features are the action expert's hidden state at the state token."""

    def __init__(self, shape: NetworkShape, **parts: Any) -> None:
        super().__init__(Pi0Network(shape), feature_size=shape.expert.width, **parts)

    def _drop_velocity(self) -> None:
        """See `FlowVLA._drop_velocity`: keeps the expert, because the state passes through it."""
        del self.model.action_in_proj, self.model.action_out_proj
        del self.model.action_time_mlp_in, self.model.action_time_mlp_out


class Pi05(Pi):
    """pi0.5; its features are the language model's last hidden state at the last word.

    The prompt contains the state, but a row of a batch has one instruction for many states. The
    instruction is therefore kept as characters, and `forward` makes the tokens.

    Args:
        shape: Shape of the network.
        padded_state: Numbers of the state in the prompt; zeros are added at the end.
        parts: Further arguments of `Pi`.
    """

    def __init__(self, shape: NetworkShape, *, padded_state: int, **parts: Any) -> None:
        super().__init__(Pi05Network(shape), feature_size=shape.language.width, **parts)
        self.padded_state = padded_state

    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """Characters (code points) of the instruction, int64 [L].

        Raises:
            ConfigError: The instruction is longer than the prompt has room for.
        """
        cleaned = text.strip().replace("_", " ").replace("\n", " ")
        length = CHARACTERS * self.io_format.instruction_length
        if len(cleaned) > length:
            raise ConfigError(
                f"The instruction {cleaned[:40]!r}... has {len(cleaned)} characters, but the "
                f"prompt of this pi0.5 has room for {length}: shorten it."
            )
        return np.array([*map(ord, cleaned)] + [PADDING] * (length - len(cleaned)), np.int64)

    def prompt(self, characters_L: NDArray[np.int64], state_P: NDArray[np.float32]) -> str:
        """The prompt of an instruction and a scaled state."""
        text = "".join(map(chr, characters_L[characters_L >= 0]))
        padded = np.pad(state_P, (0, self.padded_state - len(state_P)))
        numbers = " ".join(map(str, np.digitize(padded, bins=BINS) - 1))
        return f"Task: {text}, State: {numbers};\nAction: "

    def _prefix(
        self,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> Prefix:
        assert pixel_values is not None and proprioception is not None, "checked when it was made"
        rows = zip(instruction_ids.cpu().numpy(), proprioception.cpu().numpy(), strict=True)
        words_NL = np.stack([self.io_format.tokens(self.prompt(*row)) for row in rows])
        words = torch.from_numpy(words_NL).to(pixel_values.device)
        return self.model.prefix(pixel_values, words, proprioception)

    def _drop_velocity(self) -> None:
        """See `FlowVLA._drop_velocity`."""
        del self.model.paligemma_with_expert.gemma_expert
        del self.model.action_in_proj, self.model.action_out_proj
        del self.model.time_mlp_in, self.model.time_mlp_out
