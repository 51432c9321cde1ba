"""Requests that are being continued, as rows of arrays: what a forward pass asks of all of them
costs no loop in Python.

Rows 0 to count-1 are running; when some leave, the last ones move into their places, so that a pass
works on one block of rows.
"""

# R running row, T generated token

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siirl.engine.rollout.admission import Job
from siirl.engine.rollout.generation import FinishReason, GenerationResponse


@dataclass(frozen=True)
class Moves:
    """Rows that were moved when others left, to be followed by whoever keeps something for each
    row.
    """

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]


class RunningRows:
    """Arrays with a row for each running request; they grow with the number and the length of
    requests, and never shrink.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.with_stop: list[int] = []
        """Rows whose request has stop strings."""
        self.last_tokens = np.zeros(0, np.int64)
        """The token that the next pass feeds."""
        self.positions = np.zeros(0, np.int64)
        """Where it stands."""
        self.counts = np.zeros(0, np.int64)
        """Tokens generated so far."""
        self.limits = np.zeros(0, np.int64)
        self.greedy = np.zeros(0, np.bool_)
        self.uniforms = np.zeros((0, 0), np.float32)
        self.tokens = np.zeros((0, 0), np.int64)
        self.log_probs = np.zeros((0, 0), np.float32)
        self.versions = np.zeros((0, 0), np.int64)

    @property
    def count(self) -> int:
        """Running requests."""
        return len(self.jobs)

    def join(self, jobs: Sequence[Job]) -> None:
        """Append rows; each draws the numbers of its whole continuation from its own generator."""
        first, last = self.count, self.count + len(jobs)
        self._reserve(rows=last, tokens=max(job.request.max_new_tokens for job in jobs))
        for row, job in enumerate(jobs, start=first):
            request = job.request
            self.last_tokens[row] = request.input_ids[-1]
            self.positions[row] = len(request.input_ids) - 1
            self.limits[row], self.greedy[row] = request.max_new_tokens, request.greedy
            if not request.greedy:
                numbers = np.random.default_rng(request.seed).random(
                    request.max_new_tokens, dtype=np.float32
                )
                self.uniforms[row, : request.max_new_tokens] = numbers
        self.counts[first:last] = 0
        self.jobs += jobs
        self._find_stops()

    def numbers(self) -> NDArray[np.float32]:
        """The number in [0, 1) that draws each row's next token, [R]."""
        return self.uniforms[np.arange(self.count), self.counts[: self.count]]

    def append(
        self, tokens_R: NDArray[np.int64], log_probs_R: NDArray[np.float32], *, version: int
    ) -> None:
        """Each row's next token, of the weights of `version`."""
        rows = np.arange(self.count)
        places = self.counts[rows]
        self.tokens[rows, places] = tokens_R
        self.log_probs[rows, places] = log_probs_R
        self.versions[rows, places] = version
        self.last_tokens[rows] = tokens_R
        self.counts[rows] += 1
        self.positions[rows] += 1

    def response(self, row: int, reason: FinishReason) -> GenerationResponse:
        """What a row has so far."""
        count = self.counts[row]
        return GenerationResponse(
            tokens=self.tokens[row, :count].copy(),
            log_probs=self.log_probs[row, :count].copy(),
            versions=self.versions[row, :count].copy(),
            finish_reason=reason,
        )

    def leave(self, rows: NDArray[np.int64]) -> Moves:
        """Take rows out."""
        gone = np.zeros(self.count, np.bool_)
        gone[rows] = True
        remaining = self.count - int(gone.sum())
        moves = Moves(
            sources=remaining + np.flatnonzero(~gone[remaining:]),
            targets=np.flatnonzero(gone[:remaining]),
        )
        for array in self._arrays():
            array[moves.targets] = array[moves.sources]
        for source, target in zip(moves.sources, moves.targets, strict=True):
            self.jobs[target] = self.jobs[source]
        del self.jobs[remaining:]
        self._find_stops()
        return moves

    def _find_stops(self) -> None:
        self.with_stop = [row for row, job in enumerate(self.jobs) if job.request.stop]

    def _arrays(self) -> list[NDArray[Any]]:
        return [getattr(self, name) for name in ROW_ARRAYS]

    def _reserve(self, *, rows: int, tokens: int) -> None:
        """Grow the arrays; rows at least double, so that requests that come one by one do not copy
        all each time.
        """
        have_rows, have_tokens = self.tokens.shape
        if rows <= have_rows and tokens <= have_tokens:
            return
        rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        tokens = max(tokens, have_tokens)
        for name in ROW_ARRAYS:
            old = getattr(self, name)
            new = np.zeros((rows, tokens) if old.ndim == 2 else rows, old.dtype)
            new[tuple(slice(size) for size in old.shape)] = old
            setattr(self, name, new)


ROW_ARRAYS = (
    "last_tokens",
    "positions",
    "counts",
    "limits",
    "greedy",
    "uniforms",
    "tokens",
    "log_probs",
    "versions",
)
