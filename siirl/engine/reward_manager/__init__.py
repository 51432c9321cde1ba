"""How a finished episode is rewarded: one manager each, chosen by `reward.name`."""

from siirl.engine.reward_manager.embodied import REWARD_MANAGERS, EpisodeOutcomes, RewardManager, RewardScores, make_reward_manager

__all__ = ["REWARD_MANAGERS", "EpisodeOutcomes", "RewardManager", "RewardScores", "make_reward_manager"]
