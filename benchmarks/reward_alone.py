"""Trains on a video reward with the successes hidden, to see whether the policy finds a hole.

    python -m benchmarks.reward_alone demo --seeds 1

For 100 steps from the shipped weights every episode, success or not, gets what a failure would:

- `video_alone`: sigmoid(-z) of its video's distance to fifteen expert episodes of its task;
- `value_alone`: the reward of a failure by `reward=video_value`, which goes on learning from the
  run's episodes how successes end. Success itself earns nothing.

If the reward rises while success falls, the policy exploits it. The simulator's distance to the
goal is measured beside it. `benchmarks.learning_studies` runs and measures. Left out: the filter
still drops groups that all succeed, which has no effect on what failures earn.
"""

import asyncio
import copy
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.collect_clips import collect
from benchmarks.learning_studies import Arm, Study, run_studies
from envs.metaworld.metaworld_env import DEFAULT_TASKS
from siirl.engine.reward_manager import EpisodeOutcomes, RewardScores
from siirl.engine.reward_manager.demonstration_clips import load_demonstration_clips
from siirl.engine.reward_manager.embodied_rewards import VideoReward, VideoValueReward
from siirl.files.paths import find
from siirl.params import RewardArguments
from vjepa.encoders import load_video_encoder
from vjepa.reward import TrajectoryReward
from vjepa.reward_settings import TrajectoryRewardConfig
from vjepa.success_value import SuccessValueReward

EXPERTS = Path("outputs/benchmarks/reward_alone/experts.npz")
EXPERT_EPISODES, FIRST_SEED = 15, 7_900_000  # of start states that nothing was trained or tuned on
STUDY = Study(
    common=(),
    steps=100,
    arms={
        "video_alone": Arm(
            ("reward.name=benchmarks.reward_alone:VideoAlone", "reward.encoder=assets/vjepa_tiny")
        ),
        "value_alone": Arm(
            ("reward.name=benchmarks.reward_alone:ValueAlone", "reward.encoder=pixels")
        ),
    },
)


class VideoAlone(VideoReward):
    """SRPO's reward of a failure, for every episode; experts are its only references.

    Args:
        config: The `reward` group.
    """

    def __init__(self, config: RewardArguments) -> None:
        assert config.encoder is not None
        encoder = load_video_encoder(str(find(config.encoder)))
        experts = load_demonstration_clips(str(find(str(EXPERTS))))
        super().__init__(
            TrajectoryReward(
                TrajectoryRewardConfig(alpha=1),
                demonstrations={task: encoder.encode(clips) for task, clips in experts.items()},
            )
        )

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See `RewardManager`."""
        return super().score(replace(outcomes, complete_B=np.zeros(len(outcomes.uid_B), bool)))

    def remember(self, dropped: EpisodeOutcomes) -> None:
        """Nothing: their successes are hidden."""


class ValueAlone(VideoValueReward):
    """The reward of a failure by `reward=video_value`, for every episode.

    Args:
        config: The `reward` group.
    """

    def __init__(self, config: RewardArguments) -> None:
        super().__init__(SuccessValueReward(TrajectoryRewardConfig(alpha=1)))

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See `RewardManager`; a copy scores what the reward itself then learns from."""
        hidden = replace(outcomes, complete_B=np.zeros(len(outcomes.uid_B), bool))
        paid = copy.deepcopy(self.reward).score(**self.columns(hidden)).reward_B
        return replace(super().score(outcomes), reward_B=paid)


def collect_experts() -> None:
    """Write the references, unless they are there."""
    if EXPERTS.is_file():
        return
    clips = asyncio.run(
        collect(tasks=DEFAULT_TASKS, counts={"expert": EXPERT_EPISODES}, first_seed=FIRST_SEED)
    )
    EXPERTS.parent.mkdir(parents=True, exist_ok=True)
    rows = {f"{clip.task}/{clip.seed}": clip.frames for clip in clips if clip.success}
    np.savez_compressed(EXPERTS, allow_pickle=False, **rows)


if __name__ == "__main__":
    collect_experts()
    run_studies({"demo": STUDY}, name="reward_alone", description=__doc__)
