"""SmolVLA: a small VLA policy whose action expert denoises chunks of actions, for RL.

The policy is in `siirl.models.flow_vla`, the network in `siirl.models.smolvla_network`, and the
reader of LeRobot's checkpoints in `siirl.models.smolvla_checkpoint`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import SmolVLMConfig

from siirl.files.weight_files import CONFIG_FILE, TOKENIZER_FILE
from siirl.models.flow_vla import FlowSettings, FlowVLA, InputOutputFormat, NormalisedActions
from siirl.models.smolvla_network import NetworkShape, SmolVLANetwork

VLM_FOLDER = "vlm"
VLM_FILES = (CONFIG_FILE, TOKENIZER_FILE, "tokenizer_config.json")
"""Files of the vision-language model, in `vlm/` beside a run's weights."""


class SmolVLA(FlowVLA):
    """The policy; its features are the prefix's last hidden state at the state token.

    Args:
        vlm: Configuration of the vision-language model.
        shape: Shape of the network.
        io_format: Format of observations and chunks.
        actions: Coding of actions.
        flow: Settings of sampling from the flow.
        folder: Folder of the files beside the weights.
        vlm_folder: Folder of the vision-language model's files.
    """

    read_past = ("model.vlm_with_expert.vlm.lm_head",)

    def __init__(
        self,
        vlm: SmolVLMConfig,
        *,
        shape: NetworkShape,
        io_format: InputOutputFormat,
        actions: NormalisedActions,
        flow: FlowSettings,
        folder: Path,
        vlm_folder: Path,
    ) -> None:
        text: Any = vlm.text_config
        super().__init__(
            SmolVLANetwork(vlm, shape),
            feature_size=int(text.hidden_size),
            io_format=io_format,
            actions=actions,
            flow=flow,
            folder=folder,
        )
        self.vlm_folder = vlm_folder

    def describe(self, folder: Path, *, notes: Mapping[str, Any]) -> None:
        """See `FlowVLA.describe`."""
        super().describe(folder, notes=notes)
        (folder / VLM_FOLDER).mkdir(exist_ok=True)
        for name in VLM_FILES:
            if (self.vlm_folder / name).is_file():
                shutil.copyfile(self.vlm_folder / name, folder / VLM_FOLDER / name)

    def _drop_velocity(self) -> None:
        """See `FlowVLA._drop_velocity`."""
        del self.model.vlm_with_expert.lm_expert
        del self.model.action_in_proj, self.model.action_out_proj
        del self.model.action_time_mlp_in, self.model.action_time_mlp_out
