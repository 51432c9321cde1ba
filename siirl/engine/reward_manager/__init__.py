"""Rewards of finished episodes: one manager for each `reward.name`."""

from siirl.engine.reward_manager.embodied_rewards import (
    REWARD_MANAGERS,
    check_own_manager,
    make_reward_manager,
    pooling_of,
)
from siirl.engine.reward_manager.reward_contract import (
    EpisodeOutcomes,
    Memoryless,
    RewardManager,
    RewardScores,
)
from siirl.engine.reward_manager.text_rewards import TextRewardManager, make_text_reward_manager

__all__ = [
    "REWARD_MANAGERS",
    "EpisodeOutcomes",
    "Memoryless",
    "RewardManager",
    "RewardScores",
    "TextRewardManager",
    "check_own_manager",
    "make_reward_manager",
    "make_text_reward_manager",
    "pooling_of",
]
