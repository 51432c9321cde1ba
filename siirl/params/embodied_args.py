"""Keys of episode videos, which are separate from the policy's images."""

from dataclasses import dataclass

from siirl.params.env_args import LARGEST_PICTURE
from siirl.params.fields import option


@dataclass
class EmbodiedArguments:
    """Videos of episodes; trainer.record_episodes and record_val_episodes set their number."""

    recorder_every: int = option(
        2,
        "Environment steps between two frames of a video.",
        why="smooth enough to follow",
        minimum=1,
    )
    recorder_size: int = option(
        256,
        "Height and width of a video in pixels.",
        why="shows a gripper closing",
        minimum=16,
        maximum=LARGEST_PICTURE,
    )
