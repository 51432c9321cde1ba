"""Rewards of text: a weighted sum of parts, each of which scores the episodes of its own rank.

Parts are the environment's own verdict (success, return), functions of the user's own, and a reward
model. Functions run in processes that can be killed (`envs.worker_pool`,
`siirl.engine.reward_manager.reward_worker`): one that raises, hangs, dies, or returns what is no
score costs its sample, which is dropped and counted. It is never given a number. Managers, by
`reward.manager`: naive has one process, parallel has several, and dapo is parallel with the penalty
on long responses (`algorithm.overlong`). Without functions there is no process.
"""

# B episode of this rank

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from envs.worker_pool import (
    WorkerKilled,
    WorkerPool,
    WorkerRaised,
    WorkerSettings,
    WorkerUnavailable,
    lease,
    release,
)
from siirl.algos.overlong import overlong_penalty
from siirl.engine.reward_manager.embodied_rewards import EpisodeOutcomes, Memoryless, RewardScores
from siirl.engine.reward_manager.reward_worker import FAILED, PING, target_of
from siirl.errors import ConfigError
from siirl.params import RewardArguments, SiiRLArguments
from siirl.params.reward_args import RewardPart, reward_parts

logger = logging.getLogger(__name__)

FUNCTION_COLUMNS = ("response_text", "ground_truth", "data_source", "extra_info")
MODEL_COLUMNS = ("prompt_messages", "response_text")
TEXT_COLUMNS = tuple(dict.fromkeys((*FUNCTION_COLUMNS, *MODEL_COLUMNS)))
# the penalty grows over the last fifth of the response by default: DAPO's 4096 of 20480 tokens
OVERLONG_SHARE = 5


@dataclass
class PartScores:
    """What a part says of the episodes that it was asked about, by their position."""

    value: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    further: dict[int, dict[str, float]] = field(default_factory=dict)
    """Further numbers for logs."""


class Part(Protocol):
    """Something that scores texts."""

    def score(
        self, outcomes: EpisodeOutcomes, rows: Sequence[int], *, most_failures: float
    ) -> PartScores:
        """Score these rows; may give up on the rest once more than `most_failures` have failed."""

    def close(self) -> None:
        """Let go of processes; safe to call twice."""


class EnvironmentPart:
    """The environment's own success (0/1) or return."""

    def __init__(self, name: str) -> None:
        self.name = name

    def score(
        self, outcomes: EpisodeOutcomes, rows: Sequence[int], *, most_failures: float
    ) -> PartScores:
        """See Part; fails where the environment could not grade the episode."""
        column_B = outcomes.complete_B if self.name == "success" else outcomes.env_return_B
        graded = [row for row in rows if outcomes.graded_B is None or outcomes.graded_B[row]]
        failed = dict.fromkeys(
            set(rows) - set(graded),
            "the environment cannot grade this row, and so has no verdict to reward",
        )
        return PartScores(value={row: float(column_B[row]) for row in graded}, failed=failed)

    def close(self) -> None:
        """It has no processes."""


class FunctionPart:
    """A function of the user's own, in worker processes.

    Args:
        part: Which function, and how it is called.
        num_workers: Processes.
        timeout_s: Of a call.

    Raises:
        ConfigError: It cannot be imported, or not be called with what it gets; found out by
            starting one process.
    """

    def __init__(self, part: RewardPart, *, num_workers: int, timeout_s: float) -> None:
        self.part, self.num_workers, self.timeout_s = part, num_workers, timeout_s
        target = target_of(name=part.name, path=part.path, batched=part.batched)
        self._pool: WorkerPool | None = lease(
            WorkerSettings(target=target, num_workers=num_workers, deadline_s=timeout_s)
        )
        try:
            asyncio.run(self._pool.call(PING))
        except WorkerUnavailable as error:
            self.close()
            reason = str(error).removeprefix(f"{target} cannot be imported: ImportError: ")
            raise ConfigError(
                f"The reward function {part.name}{_in_file(part)} cannot be used: {reason}"
            ) from error

    def score(
        self, outcomes: EpisodeOutcomes, rows: Sequence[int], *, most_failures: float
    ) -> PartScores:
        """See Part."""
        size = -(-len(rows) // self.num_workers) if self.part.batched else 1
        calls = [rows[start : start + size] for start in range(0, len(rows), size)] if rows else []
        return asyncio.run(
            self._score(_samples(outcomes, rows), calls, most_failures=most_failures)
        )

    def close(self) -> None:
        """End the processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            release(pool)

    async def _score(
        self,
        samples: dict[int, dict[str, Any]],
        calls: Sequence[Sequence[int]],
        *,
        most_failures: float,
    ) -> PartScores:
        scores, free = PartScores(), asyncio.Semaphore(self.num_workers)

        async def call(rows: Sequence[int]) -> None:
            async with free:
                if (
                    len(scores.failed) > most_failures
                ):  # the run will stop: why wait for more of them to hang
                    scores.failed.update(dict.fromkeys(rows, "not tried after so many failures"))
                    return
                _take(scores, rows, await self._answers([samples[row] for row in rows]))

        await asyncio.gather(*(call(rows) for rows in calls))
        return scores

    async def _answers(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A dict of numbers for each sample, or the reason why there is none."""
        if self._pool is None:
            raise RuntimeError(f"The reward function {self.part.name} was closed.")
        try:
            answers: list[dict[str, Any]] = await self._pool.call(samples)
        except (WorkerRaised, WorkerKilled, WorkerUnavailable) as error:
            return [{FAILED: str(error)}] * len(samples)
        return answers


class TextRewardManager(Memoryless):
    """A weighted sum of parts, with DAPO's penalty on long responses where it has a weight.

    Args:
        parts: What is added up, with how it is described in the configuration.
        max_failed_share: Of all ranks' samples; a part may give up when its own failures alone are
            more.
        overlong: From lengths [B] in tokens to penalties [B], at most 0; None: no penalty.
    """

    looks_at_all_ranks = False

    def __init__(
        self,
        parts: Sequence[tuple[RewardPart, Part]],
        *,
        max_failed_share: float,
        overlong: Callable[[NDArray[np.int64]], NDArray[np.float32]] | None = None,
    ) -> None:
        self.parts, self.max_failed_share, self.overlong = list(parts), max_failed_share, overlong
        self.ranks_failures = any(part.name != "success" for part, _ in parts)

    def has_reference(self, task_name: str) -> bool:
        """Always: a text's reward needs nothing to compare with."""
        return True

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """See RewardManager; `outcomes` are those of this rank."""
        count = len(outcomes.uid_B)
        reward_B, env_weight_B, rewarded_B = (
            np.zeros(count),
            np.zeros(count, np.float32),
            np.zeros(count, bool),
        )
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
                row, f"no part of the reward is for the data source {_source(outcomes, row)!r}"
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
    config: SiiRLArguments, *, reward_model: Part | None = None
) -> TextRewardManager:
    """The manager of a text job.

    Args:
        config: Read are `reward`, `custom_reward_function`, `algorithm.overlong` and
            `data.max_response_length`.
        reward_model: The part called `model`, where the configuration names one.

    Raises:
        ConfigError: A part that cannot be used, or reward.manager=dapo without a penalty.
    """
    overlong = _overlong(config)
    if config.reward.manager == "dapo" and overlong is None:
        raise ConfigError(
            "reward.manager=dapo adds a penalty on long responses, and algorithm.overlong.penalty=0 is none: "
            "set it (pipeline=dapo sets 1), or take reward.manager=parallel."
        )
    parts = reward_parts(config.reward, config.custom_reward_function)
    made: list[tuple[RewardPart, Part]] = []
    try:
        for part in parts:
            made.append((part, _make_part(part, config.reward, reward_model)))
    except ConfigError:
        for _, scorer in made:
            scorer.close()
        raise
    return TextRewardManager(
        made, max_failed_share=config.reward.max_failed_share, overlong=overlong
    )


def text_columns(parts: Iterable[RewardPart]) -> tuple[str, ...]:
    """Columns of strings that these parts read, for the rollout to provide."""
    wanted: dict[str, None] = {}
    for part in parts:
        wanted |= dict.fromkeys(
            FUNCTION_COLUMNS if part.is_function else MODEL_COLUMNS if part.name == "model" else ()
        )
        wanted |= dict.fromkeys(("data_source",) if part.data_sources else ())
    return tuple(wanted)


def _make_part(part: RewardPart, reward: RewardArguments, reward_model: Part | None) -> Part:
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
            "reward.name=model needs reward_model.path, a folder of a sequence classifier with one output."
        )
    return reward_model


def _overlong(config: SiiRLArguments) -> Callable[[NDArray[np.int64]], NDArray[np.float32]] | None:
    settings, longest = config.algorithm.overlong, config.data.max_response_length
    if settings.penalty == 0:
        return None
    buffer = max(1, longest // OVERLONG_SHARE) if settings.buffer is None else settings.buffer
    if buffer > longest:
        raise ConfigError(
            f"algorithm.overlong.buffer={buffer} is more than data.max_response_length={longest}: make it smaller."
        )

    def penalty(length_B: NDArray[np.int64]) -> NDArray[np.float32]:
        lengths = torch.from_numpy(length_B)
        return (
            overlong_penalty(
                length_B=lengths, max_length=longest, buffer=buffer, factor=settings.penalty
            )
            .float()
            .numpy()
        )

    return penalty


def _samples(outcomes: EpisodeOutcomes, rows: Sequence[int]) -> dict[int, dict[str, Any]]:
    """What a function is called with, by row."""
    columns = [column_of(outcomes, name) for name in FUNCTION_COLUMNS]
    samples = {}
    for row in rows:
        response, truth, source, extra = (column[row] for column in columns)
        samples[row] = {
            "data_source": source,
            "solution_str": response,
            "ground_truth": json.loads(truth),
            "extra_info": json.loads(extra),
        }
    return samples


def _take(scores: PartScores, rows: Sequence[int], answers: Sequence[dict[str, Any]]) -> None:
    for row, answer in zip(rows, answers, strict=True):
        if FAILED in answer:
            if not scores.failed:
                logger.warning("A reward function failed: %s", answer[FAILED])
            scores.failed[row] = answer[FAILED]
        else:
            scores.value[row] = answer["score"]
            scores.further[row] = {name: value for name, value in answer.items() if name != "score"}


def _logged(part: RewardPart, scores: PartScores, count: int) -> dict[str, NDArray[np.float32]]:
    """The part and its further numbers as columns with holes."""
    logged = {part.label: np.full(count, np.nan, np.float32)}
    for row, value in scores.value.items():
        logged[part.label][row] = value
        for name, further in scores.further.get(row, {}).items():
            logged.setdefault(
                f"{part.label}.{_metric_name(name)}", np.full(count, np.nan, np.float32)
            )[row] = further
    return logged


def _metric_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in name)


def _concerns(part: RewardPart, outcomes: EpisodeOutcomes, row: int) -> bool:
    return not part.data_sources or _source(outcomes, row) in part.data_sources


def _source(outcomes: EpisodeOutcomes, row: int) -> str:
    return (
        outcomes.texts_B["data_source"][row]
        if "data_source" in outcomes.texts_B
        else outcomes.task_name_B[row]
    )


def column_of(outcomes: EpisodeOutcomes, name: str) -> list[str]:
    """A column of strings; ConfigError where the rollout did not provide it."""
    if name not in outcomes.texts_B:
        raise ConfigError(
            f"A reward function reads the column {name!r}, which the rollout did not provide. There: {sorted(outcomes.texts_B)}."
        )
    return outcomes.texts_B[name]


def _lengths(outcomes: EpisodeOutcomes) -> NDArray[np.int64]:
    if outcomes.response_length_B is None:
        raise ConfigError(
            "algorithm.overlong needs the lengths of responses, which are tokens of text; robots have none."
        )
    return outcomes.response_length_B


def _in_file(part: RewardPart) -> str:
    return "" if part.path is None else f" of {part.path}"
