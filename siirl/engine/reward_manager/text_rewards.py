"""Rewards of text: a weighted sum of parts. Each part scores the episodes of its rank.

Parts are the environment's verdict (success, return), user functions (`text_parts`), and a reward
model. Managers (`reward.manager`): naive has one process, parallel has several, dapo is parallel
with the penalty on long responses (`algorithm.overlong`). Without functions there is no process.
"""

# B episode of this rank

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.algos.overlong import overlong_penalty
from siirl.engine.reward_manager.reward_contract import EpisodeOutcomes, Memoryless, RewardScores
from siirl.engine.reward_manager.text_parts import (
    FUNCTION_COLUMNS,
    MODEL_COLUMNS,
    EnvironmentPart,
    FunctionPart,
    PartScorer,
    PartScores,
)
from siirl.errors import ConfigError
from siirl.params import CustomRewardArguments, RewardArguments
from siirl.params.algorithm_args import OverlongArguments
from siirl.params.reward_args import RewardPart, reward_parts

# By default the penalty grows over the last fifth of the response: DAPO's 4096 of 20480 tokens.
OVERLONG_SHARE = 5


class TextRewardManager(Memoryless):
    """A weighted sum of parts, with DAPO's penalty on long responses if the penalty has a weight.

    Args:
        parts: Summands, with their configuration.
        max_failed_share: Limit of failures, of all ranks' samples; a part may give up when its own
            failures exceed it.
        overlong: Maps lengths [B] in tokens to penalties [B], at most 0; None: no penalty.
    """

    looks_at_all_ranks = False

    def __init__(
        self,
        parts: Sequence[tuple[RewardPart, PartScorer]],
        *,
        max_failed_share: float,
        overlong: Callable[[NDArray[np.int64]], NDArray[np.float32]] | None = None,
    ) -> None:
        self.parts = list(parts)
        self.max_failed_share = max_failed_share
        self.overlong = overlong
        self.ranks_failures = any(part.name != "success" for part, _ in parts)

    @property
    def only_waits(self) -> bool:
        """Whether processes do the work, so that `score` may run in a thread beside other work."""
        scorers = [scorer for _, scorer in self.parts]
        return any(isinstance(scorer, FunctionPart) for scorer in scorers) and all(
            isinstance(scorer, FunctionPart | EnvironmentPart) for scorer in scorers
        )

    def has_reference(self, task_name: str) -> bool:
        """Always: a text's reward needs no reference."""
        return True

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See RewardManager; `outcomes` are those of this rank."""
        count = len(outcomes.uid_B)
        reward_B = np.zeros(count)
        env_weight_B = np.zeros(count, np.float32)
        rewarded_B = np.zeros(count, bool)
        failed: dict[int, str] = {}
        logged: dict[str, NDArray[np.float32]] = {}
        for part, scorer in self.parts:
            rows = [
                row for row in range(count) if row not in failed and _concerns(part, outcomes, row)
            ]
            scores = scorer.score(
                outcomes, rows, most_failures=self.max_failed_share * outcomes.total
            )
            failed |= {row: f"{part.label}: {reason}" for row, reason in scores.failed.items()}
            for row, value in scores.value.items():
                reward_B[row] += part.weight * value
                env_weight_B[row] += part.weight * (part.name == "return")
                rewarded_B[row] = True
            logged |= _logged(part, scores, count)
        for row in np.flatnonzero(~rewarded_B).tolist():
            failed.setdefault(
                row, f"no part of the reward covers the data source {_source(outcomes, row)!r}"
            )
        return RewardScores(
            reward_B=reward_B.astype(np.float32),
            failed=failed,
            penalty_B=None if self.overlong is None else self.overlong(_lengths(outcomes)),
            env_weight_B=env_weight_B,
            parts=logged if len(self.parts) > 1 or len(logged) > 1 else {},
        )

    def close(self) -> None:
        """End the parts' processes."""
        for _, scorer in self.parts:
            scorer.close()


def make_text_reward_manager(
    reward: RewardArguments,
    custom: CustomRewardArguments,
    *,
    overlong: OverlongArguments,
    max_response_length: int,
    reward_model: PartScorer | None = None,
) -> TextRewardManager:
    """The manager of a text job.

    Args:
        reward: Parts and manager.
        custom: `custom_reward_function`.
        overlong: `algorithm.overlong`, the penalty on long responses.
        max_response_length: Most tokens of a response.
        reward_model: The part `model`, if the configuration names one.

    Raises:
        ConfigError: A part that cannot be used, or reward.manager=dapo without a penalty.
    """
    penalty = _penalty(overlong, longest=max_response_length)
    if reward.manager == "dapo" and penalty is None:
        raise ConfigError(
            "reward.manager=dapo adds a penalty on long responses, but "
            "algorithm.overlong.penalty=0 disables it: set the key (pipeline=dapo sets 1), or "
            "choose reward.manager=parallel."
        )
    parts = reward_parts(reward, custom)
    made: list[tuple[RewardPart, PartScorer]] = []
    try:
        for part in parts:
            made.append((part, _make_part(part, reward, reward_model)))
    except ConfigError:
        for _, scorer in made:
            scorer.close()
        raise
    return TextRewardManager(made, max_failed_share=reward.max_failed_share, overlong=penalty)


def text_columns(parts: Iterable[RewardPart]) -> tuple[str, ...]:
    """Columns of strings that these parts read, for the rollout to provide."""
    wanted: dict[str, None] = {}
    for part in parts:
        if part.is_function:
            wanted |= dict.fromkeys(FUNCTION_COLUMNS)
        elif part.name == "model":
            wanted |= dict.fromkeys(MODEL_COLUMNS)
        if part.data_sources:
            wanted["data_source"] = None
    return tuple(wanted)


def _make_part(
    part: RewardPart, reward: RewardArguments, reward_model: PartScorer | None
) -> PartScorer:
    if part.is_function:
        return FunctionPart(
            part,
            num_workers=1 if reward.manager == "naive" else reward.num_workers,
            timeout_s=reward.timeout_s,
        )
    if part.name != "model":
        return EnvironmentPart(part.name)
    if reward_model is None:
        raise ConfigError(
            "reward.name=model needs reward_model.path, a folder of a sequence classifier with one "
            "output."
        )
    return reward_model


def _penalty(
    settings: OverlongArguments, *, longest: int
) -> Callable[[NDArray[np.int64]], NDArray[np.float32]] | None:
    if settings.penalty == 0:
        return None
    buffer = max(1, longest // OVERLONG_SHARE) if settings.buffer is None else settings.buffer
    if buffer > longest:
        raise ConfigError(
            f"algorithm.overlong.buffer={buffer} is more than data.max_response_length={longest}: "
            "lower it."
        )

    def penalty(length_B: NDArray[np.int64]) -> NDArray[np.float32]:
        lengths = torch.from_numpy(length_B)
        penalty_B = overlong_penalty(
            length_B=lengths, max_length=longest, buffer=buffer, factor=settings.penalty
        )
        return penalty_B.float().numpy()

    return penalty


def _logged(part: RewardPart, scores: PartScores, count: int) -> dict[str, NDArray[np.float32]]:
    """The part and its further numbers as columns; NaN marks a missing number."""
    logged = {part.label: np.full(count, np.nan, np.float32)}
    for row, value in scores.value.items():
        logged[part.label][row] = value
        for name, further in scores.further.get(row, {}).items():
            column = f"{part.label}.{_metric_name(name)}"
            logged.setdefault(column, np.full(count, np.nan, np.float32))[row] = further
    return logged


def _metric_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in name)


def _concerns(part: RewardPart, outcomes: EpisodeOutcomes, row: int) -> bool:
    return not part.data_sources or _source(outcomes, row) in part.data_sources


def _source(outcomes: EpisodeOutcomes, row: int) -> str:
    if "data_source" in outcomes.texts_B:
        return outcomes.texts_B["data_source"][row]
    return outcomes.task_name_B[row]


def _lengths(outcomes: EpisodeOutcomes) -> NDArray[np.int64]:
    if outcomes.response_length_B is None:
        raise ConfigError(
            "algorithm.overlong needs response lengths in tokens of text; robots have none."
        )
    return outcomes.response_length_B
