"""Typed configuration: dataclasses with help and bounds, the parser that fills them, and sizes that
follow from them.

Imports neither torch nor ray, so that `--help` and refusals are quick.
"""

from siirl.params.algorithm_args import AlgorithmArguments, FilterArguments, KLCtrlArguments
from siirl.params.cluster_args import ClusterArguments
from siirl.params.critic_args import CriticArguments
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.embodied_args import EmbodiedArguments
from siirl.params.env_args import EnvArguments
from siirl.params.model_args import (
    ActorArguments,
    ActorRolloutRefArguments,
    ModelArguments,
    OptimizerArguments,
    RefArguments,
    RewardModelArguments,
)
from siirl.params.profiler_args import ProfilerArguments
from siirl.params.reward_args import CustomRewardArguments, RewardArguments
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments

__all__ = [
    "ActorArguments",
    "ActorRolloutRefArguments",
    "AlgorithmArguments",
    "ClusterArguments",
    "CriticArguments",
    "CustomRewardArguments",
    "DagArguments",
    "DataArguments",
    "EmbodiedArguments",
    "EnvArguments",
    "FilterArguments",
    "KLCtrlArguments",
    "ModelArguments",
    "OptimizerArguments",
    "ProfilerArguments",
    "RefArguments",
    "RewardArguments",
    "RewardModelArguments",
    "RolloutArguments",
    "SiiRLArguments",
    "TrainingArguments",
]
