"""Rewards of embodied episodes: success, return, SRPO's video distance, video value, oracle.

A manager sees the outcomes of *all* ranks, sorted by uid, so every rank computes the same rewards
and keeps the same memory, whatever the number of ranks. Episodes whose simulation failed are not
included.
"""

# B episode (of all ranks), D channel of the video embedding

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.mistakes import user_code
from siirl.engine.reward_manager.reward_contract import (
    EpisodeOutcomes,
    Memoryless,
    RewardManager,
    RewardScores,
)
from siirl.errors import ConfigError, SiirlError, UnknownNameError
from siirl.params import RewardArguments
from siirl.params.references import check_call, is_reference, load_reference
from vjepa.pooling import OVER_TIME
from vjepa.reward_settings import TrajectoryRewardConfig

# Importing SciPy and scikit-learn takes a fifth of a run's import time; only these rewards need
# them.
if TYPE_CHECKING:
    from vjepa.reward import RewardOutput, TrajectoryReward
    from vjepa.success_value import SuccessValueReward


class SuccessReward(Memoryless):
    """1 for success, 0 for failure."""

    ranks_failures = False

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See RewardManager."""
        return RewardScores(outcomes.complete_B.astype(np.float32))


class ReturnReward(Memoryless):
    """The environment's sum of rewards, undiscounted; it distinguishes all episodes."""

    ranks_failures = True

    def has_reference(self, task_name: str) -> bool:
        """Always: a return needs no reference."""
        return True

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See RewardManager."""
        return RewardScores(
            outcomes.env_return_B.astype(np.float32),
            env_weight_B=np.ones(len(outcomes.uid_B), np.float32),
        )


class VideoReward:
    """SRPO: a failure earns more, the closer its video is to the successes of its task.

    See `vjepa.reward`.
    """

    ranks_failures = True
    looks_at_all_ranks = True

    def __init__(self, reward: "TrajectoryReward") -> None:
        self.reward = reward

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See RewardManager."""
        columns = _reward_columns(outcomes, self.embeddings(outcomes), name="srpo")
        return _with_oracle_metrics(self.reward.score(**columns), outcomes)

    def remember(self, dropped: EpisodeOutcomes) -> None:
        """Keep the successes in the bank."""
        embedding_BD = self.embeddings(dropped)
        if embedding_BD is None:
            return
        task_B = np.array(dropped.task_name_B)
        for task in sorted(set(dropped.task_name_B)):
            self.reward.remember_successes(
                task=task, embeddings_ND=embedding_BD[(task_B == task) & dropped.complete_B]
            )

    def embeddings(self, outcomes: EpisodeOutcomes) -> NDArray[np.float32] | None:
        """The embeddings [B, D] between which distances are measured."""
        return outcomes.video_embedding_BD

    def has_reference(self, task_name: str) -> bool:
        """Whether the bank or the demonstrations hold a success of the task."""
        return task_name in self.reward.bank or task_name in self.reward.demonstrations

    def state_dict(self) -> dict[str, Any]:
        """Bank of successes and window of failures."""
        return self.reward.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See RewardManager."""
        self.reward.load_state_dict(state)

    def close(self) -> None:
        """Do nothing: there are no processes."""


class VideoValueReward:
    """A failure earns more, the more it ends as successes do, which the run learns.

    See `vjepa.success_value`.
    """

    ranks_failures = True
    looks_at_all_ranks = True

    def __init__(self, reward: "SuccessValueReward") -> None:
        self.reward = reward

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See RewardManager."""
        return _with_oracle_metrics(self.reward.score(**self.columns(outcomes)), outcomes)

    def columns(self, outcomes: EpisodeOutcomes) -> dict[str, Any]:
        """The inputs of `SuccessValueReward.score`."""
        return _reward_columns(outcomes, outcomes.video_embedding_BD, name="video_value")

    def remember(self, dropped: EpisodeOutcomes) -> None:
        """Learn from successes and failures."""
        if dropped.video_embedding_BD is None:
            return
        task_B = np.array(dropped.task_name_B)
        for task in sorted(set(dropped.task_name_B)):
            self.reward.remember(
                task=task,
                embeddings_BF=dropped.video_embedding_BD[task_B == task],
                success_B=dropped.complete_B[task_B == task],
            )

    def has_reference(self, task_name: str) -> bool:
        """Whether the value of the task's frames has shown skill."""
        return self.reward.judges(task_name)

    def state_dict(self) -> dict[str, Any]:
        """The remembered episodes of each task."""
        return self.reward.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See RewardManager."""
        self.reward.load_state_dict(state)

    def close(self) -> None:
        """Do nothing: there are no processes."""


class ReleasedVideoReward(Memoryless):
    """The reward as siiRL published it (`vjepa.released_reward`), for comparison.

    It depends only on the episodes of the step.
    """

    ranks_failures = True

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See RewardManager."""
        from vjepa.released_reward import score_as_released

        columns = _reward_columns(outcomes, outcomes.video_embedding_BD, name="srpo_released")
        return _with_oracle_metrics(score_as_released(**columns), outcomes)


class OracleReward(VideoReward):
    """SRPO's reward on the simulator's true distance instead of a video, for comparison only.

    It shows what a perfect encoder could give.
    """

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See RewardManager."""
        if outcomes.oracle_distance_B is None:
            raise ConfigError(
                "reward.name=oracle needs an environment that reports info['oracle_distance']: "
                "env=metaworld does, and env=libero if all its tasks only place objects."
            )
        return super().score(outcomes)

    def embeddings(self, outcomes: EpisodeOutcomes) -> NDArray[np.float32] | None:
        """The final distance as an embedding of one number."""
        distance_B = outcomes.oracle_distance_B
        return None if distance_B is None else distance_B[:, None]

    def has_reference(self, task_name: str) -> bool:
        """Always: the goal is known."""
        return True


# Fewest failures of a task for a rank correlation: with three or four it is often +-1 by chance.
FEWEST_TO_RANK = 5

SWITCHES = ("ranks_failures", "looks_at_all_ranks")
METHODS = ("score", "remember", "has_reference", "state_dict", "load_state_dict", "close")
"""Required members of a `RewardManager`."""

REWARD_MANAGERS = ("success", "return", "srpo", "srpo_released", "video_value", "oracle")


def make_reward_manager(
    config: RewardArguments,
    *,
    demonstrations: dict[str, NDArray[np.float32]],
    tasks: tuple[str, ...],
) -> RewardManager:
    """The manager that `reward.name` selects.

    Args:
        config: The `reward` group.
        demonstrations: Video embeddings [N, D] of successful demonstrations by task; may be empty.
        tasks: The environment's tasks.
    """
    if is_reference(config.name):
        return _own_manager(config)
    if config.name == "success":
        return SuccessReward()
    if config.name == "return":
        return ReturnReward()
    if config.name not in REWARD_MANAGERS:
        raise UnknownNameError.of(
            kind="reward (reward.name)", name=config.name, known=[*REWARD_MANAGERS, "module:name"]
        )
    if config.name == "srpo_released":
        return ReleasedVideoReward()
    from vjepa.reward import TrajectoryReward

    names = [setting.name for setting in fields(TrajectoryRewardConfig)]
    settings = TrajectoryRewardConfig(**{name: getattr(config, name) for name in names})
    if config.name == "video_value":
        from vjepa.success_value import SuccessValueReward

        return VideoValueReward(SuccessValueReward(settings, demonstrations=demonstrations))
    if config.name == "oracle":
        goal = np.zeros((1, 1), np.float32)
        return OracleReward(TrajectoryReward(settings, demonstrations=dict.fromkeys(tasks, goal)))
    return VideoReward(TrajectoryReward(settings, demonstrations=demonstrations))


def pooling_of(name: str) -> str | None:
    """How the video encoder pools an episode for the reward `name`; None: the encoder's default.

    A value of frames needs its moments, whether the class is the shipped one or derived from it.
    """
    made = load_reference(name, place="reward.name") if is_reference(name) else None
    own = isinstance(made, type) and issubclass(made, VideoValueReward)
    return OVER_TIME if own or name == "video_value" else None


def check_own_manager(config: RewardArguments) -> None:
    """Refuse a `reward.name` of the form `module:name` that makes no reward manager.

    A class is judged by its methods, since its instances may load a large model. A function has to
    be called to see its result.

    Raises:
        ConfigError: It does not exist, does not take the reward's arguments, raises, or returns
            another object.
    """
    if not is_reference(config.name):
        return
    make = load_reference(config.name, place="reward.name")
    check_call(make, (config,), {}, place=f"reward.name={config.name}", call="(config.reward)")
    if not isinstance(make, type):
        _own_manager(config).close()
    elif (missing := _missing(METHODS, make)) and "__getattr__" not in dir(make):
        raise _no_manager(f"reward.name={config.name} is a class", missing)


def _own_manager(config: RewardArguments) -> RewardManager:
    make = load_reference(config.name, place="reward.name")
    with user_code(
        lambda raised: ConfigError(
            f"reward.name={config.name} is called with (config.reward), and raised {raised}. It "
            "must make a reward manager, derived from siirl.engine.reward_manager.Memoryless."
        ),
        passed=SiirlError,
    ):
        manager = make(config)
    if not isinstance(manager, RewardManager):
        made = f"reward.name={config.name} made a {type(manager).__name__}"
        raise _no_manager(made, _missing((*SWITCHES, *METHODS), manager))
    return manager


def _missing(members: Sequence[str], thing: object) -> list[str]:
    return [name for name in members if name not in dir(thing)]


def _no_manager(found: str, missing: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{found}, which lacks {', '.join(missing)} of a reward manager: derive it from "
        "siirl.engine.reward_manager.Memoryless, or see "
        "siirl.engine.reward_manager.RewardManager."
    )


def _reward_columns(
    outcomes: EpisodeOutcomes, embedding_BD: NDArray[np.float32] | None, *, name: str
) -> dict[str, Any]:
    """The inputs of the trajectory reward `name`."""
    if embedding_BD is None:
        raise ConfigError(
            f"reward.name={name} needs the column video_embedding, which the rollout provides if a "
            "video encoder is set."
        )
    return {
        "embeddings_BD": embedding_BD,
        "success_B": outcomes.complete_B,
        "tasks_B": outcomes.task_name_B,
        "group_B": outcomes.index_B,
    }


def _with_oracle_metrics(output: "RewardOutput", outcomes: EpisodeOutcomes) -> RewardScores:
    """Rewards and metrics of a trajectory reward.

    If the environment reports the true distance, metrics include the rank correlation with it.
    """
    metrics = dict(output.metrics)
    if outcomes.oracle_distance_B is not None:
        ranked_B = ~outcomes.complete_B & output.defined_B
        metrics |= _agreement_with_oracle(
            output.reward_B[ranked_B],
            outcomes.oracle_distance_B[ranked_B],
            np.array(outcomes.task_name_B)[ranked_B],
        )
    return RewardScores(output.reward_B, metrics)


def _agreement_with_oracle(
    reward_B: NDArray[np.floating], distance_B: NDArray[np.floating], task_B: NDArray[np.str_]
) -> dict[str, float]:
    """Rank correlation of failures' rewards with their true closeness, within each task.

    Scales differ between tasks.
    """
    tasks = [task_B == task for task in sorted(set(task_B))]
    ranked = [of_task for of_task in tasks if of_task.sum() >= FEWEST_TO_RANK]
    if not ranked:
        return {}
    correlations = [
        _rank_correlation(-reward_B[of_task], distance_B[of_task]) for of_task in ranked
    ]
    return {
        "reward/oracle_rank_correlation": float(
            np.average(correlations, weights=[of_task.sum() for of_task in ranked])
        )
    }


def _rank_correlation(left_B: NDArray[np.floating], right_B: NDArray[np.floating]) -> float:
    """Spearman's rho; 0 if one side is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values) for values in (left_B, right_B)]
    if any(rank.std() == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])
