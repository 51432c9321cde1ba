"""Parts of a text's reward: the environment's verdict, and user functions in killable processes.

If a function raises, hangs, dies, or returns an invalid score, its sample is dropped and counted;
it never gets a number (`envs.worker_pool`, `siirl.engine.reward_worker`). Left out: a reward model
(`reward_model`).
"""

# B episode of this rank

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from envs.worker_pool import (
    WorkerKilled,
    WorkerPool,
    WorkerRaised,
    WorkerSettings,
    WorkerUnavailable,
    lease,
    release,
)
from siirl.engine.reward_manager.reward_contract import EpisodeOutcomes
from siirl.engine.reward_worker import FAILED, PING, target_of
from siirl.errors import ConfigError
from siirl.params.reward_args import RewardPart

logger = logging.getLogger(__name__)

FUNCTION_COLUMNS = ("response_text", "ground_truth", "data_source", "extra_info")
MODEL_COLUMNS = ("prompt_messages", "response_text")
TEXT_COLUMNS = tuple(dict.fromkeys((*FUNCTION_COLUMNS, *MODEL_COLUMNS)))


@dataclass
class PartScores:
    """A part's scores of the requested episodes, by position."""

    value: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    further: dict[int, dict[str, float]] = field(default_factory=dict)
    """Further numbers for logs."""


class PartScorer(Protocol):
    """Scores texts."""

    def score(
        self, outcomes: EpisodeOutcomes, rows: Sequence[int], *, most_failures: float
    ) -> PartScores:
        """Score these rows; may skip the rest after more than `most_failures` failures."""

    def close(self) -> None:
        """End processes; safe to call twice."""


class EnvironmentPart:
    """The environment's own success (0/1) or return."""

    def __init__(self, name: str) -> None:
        self.name = name

    def score(
        self, outcomes: EpisodeOutcomes, rows: Sequence[int], *, most_failures: float
    ) -> PartScores:
        """See PartScorer; fails for episodes that the environment could not grade."""
        column_B = outcomes.complete_B if self.name == "success" else outcomes.env_return_B
        graded = [row for row in rows if outcomes.graded_B is None or outcomes.graded_B[row]]
        failed = dict.fromkeys(
            set(rows) - set(graded),
            "the environment cannot grade this row, so it has no verdict",
        )
        return PartScores(value={row: float(column_B[row]) for row in graded}, failed=failed)

    def close(self) -> None:
        """Do nothing: there are no processes."""


class FunctionPart:
    """A user's function, in worker processes.

    Args:
        part: Function, and how it is called.
        num_workers: Number of processes.
        timeout_s: Time limit of a call.

    Raises:
        ConfigError: It cannot be imported or called with its arguments; one process is started to
            check this.
    """

    def __init__(self, part: RewardPart, *, num_workers: int, timeout_s: float) -> None:
        self.part = part
        self.num_workers = num_workers
        self.timeout_s = timeout_s
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
        """See PartScorer."""
        size = -(-len(rows) // self.num_workers) if self.part.batched else 1
        calls = [rows[start : start + size] for start in range(0, len(rows), size)] if rows else []
        return asyncio.run(
            self._score(_samples(outcomes, rows), calls, most_failures=most_failures)
        )

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            pool = self._pool
            self._pool = None
            release(pool)

    async def _score(
        self,
        samples: dict[int, dict[str, Any]],
        calls: Sequence[Sequence[int]],
        *,
        most_failures: float,
    ) -> PartScores:
        scores = PartScores()
        free = asyncio.Semaphore(self.num_workers)

        async def call(rows: Sequence[int]) -> None:
            async with free:
                # the run will stop: do not wait for further calls that may hang
                if len(scores.failed) > most_failures:
                    scores.failed.update(dict.fromkeys(rows, "skipped after too many failures"))
                    return
                _take(scores, rows, await self._answers([samples[row] for row in rows]))

        await asyncio.gather(*(call(rows) for rows in calls))
        return scores

    async def _answers(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A dict of numbers for each sample, or the reason of its failure."""
        if self._pool is None:
            raise RuntimeError(f"The reward function {self.part.name} was closed.")
        try:
            answers: list[dict[str, Any]] = await self._pool.call(samples)
        except (WorkerRaised, WorkerKilled, WorkerUnavailable) as error:
            return [{FAILED: str(error)}] * len(samples)
        return answers


def _samples(outcomes: EpisodeOutcomes, rows: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Arguments of the function, by row."""
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


def column_of(outcomes: EpisodeOutcomes, name: str) -> list[str]:
    """A column of strings; raises ConfigError if the rollout did not provide it."""
    if name not in outcomes.texts_B:
        raise ConfigError(
            f"A reward function reads the column {name!r}, which the rollout did not provide. "
            f"Provided: {sorted(outcomes.texts_B)}."
        )
    return outcomes.texts_B[name]


def _in_file(part: RewardPart) -> str:
    return "" if part.path is None else f" of {part.path}"
