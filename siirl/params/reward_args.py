"""How an episode is rewarded."""

from dataclasses import dataclass

from siirl.params.fields import option

REWARDS = ("success", "return", "srpo", "srpo_released", "oracle")
VIDEO_REWARDS = ("srpo", "srpo_released")
OWN_REWARD = "name a trajectory reward by reward.name=module:name"


@dataclass
class RewardArguments:
    """The trajectory reward; keys after `name` are read by srpo and srpo_released (vjepa.reward says more)."""

    name: str = option(
        "success",
        "success (0/1), return (sum of rewards), srpo (distance of the video to successes), srpo_released (siiRL's form, for comparison), "
        "oracle (true distance, for comparison), or `module:name`.",
        why="pipeline=embodied_srpo sets srpo",
    )
    alpha: float = option(0.8, "Ceiling of a failure's reward.", why="SRPO", above=0, maximum=1)
    encoder: str | None = option(
        "tiny",
        "Video encoder: tiny (shipped), a V-JEPA 2 folder or file, a hub id; null: none, for a reward of your own that sees no video.",
        why="runs without a download",
    )
    frame_every: int = option(8, "Environment steps between two frames for the encoder.", why="a chunk boundary: no extra image", minimum=1)
    bank_size: int = option(64, "Successes of earlier steps kept for each task.", why="a few steps' worth", minimum=0)
    window: int = option(256, "Failures of earlier steps kept for each task; they standardise distances.", why="a stable spread", minimum=0)
    min_window: int = option(
        8, "With fewer failures in the window, the step's count too.", why="the spread of fewer says little", minimum=1
    )
    min_samples: int = option(2, "DBSCAN: points within the radius of a core point.", why="siiRL's", minimum=1)
    eps_scale: float = option(2.0, "DBSCAN: radius in medians of the nearest-neighbour distance.", why="needs no scale", above=0)
    demonstrations: str | None = option(None, "Clips that serve as successes from the start.", why="own successes alone")


@dataclass
class CustomRewardArguments:
    """A reward function of the user's own, for text."""

    path: str | None = option(None, "Python file that defines it.", text_only=OWN_REWARD)
    name: str | None = option(None, "Its name in that file.", text_only=OWN_REWARD)
