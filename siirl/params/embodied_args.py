"""The second stream of frames of an embodied job: what is filmed for people, beside what the policy
sees.
"""

from dataclasses import dataclass

from siirl.params.env_args import LARGEST_PICTURE
from siirl.params.fields import option


@dataclass
class EmbodiedArguments:
    """Videos of episodes; how many are recorded is trainer.record_episodes and
    trainer.record_val_episodes.
    """

    recorder_every: int = option(
        2,
        "Environment steps between two frames of a video.",
        why="smooth enough to follow",
        minimum=1,
    )
    recorder_size: int = option(
        256,
        "Height and width of a video in pixels.",
        why="a gripper can be seen to close",
        minimum=16,
        maximum=LARGEST_PICTURE,
    )
