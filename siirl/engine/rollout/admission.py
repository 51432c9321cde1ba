"""Admission queue of a text engine: which requests wait, and when they join a batch.

By default requests join as they arrive. In lockstep mode they join in rounds, in the order of their
uids. A round begins when every episode that can run is waiting and all requests of the last round
are answered. The rows of a forward pass therefore do not depend on timing.
"""

import asyncio
from dataclasses import dataclass

import numpy as np

from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.errors import ConfigError

EMPTY_RESPONSE = GenerationResponse(
    tokens=np.zeros(0, np.int64),
    log_probs=np.zeros(0, np.float32),
    versions=np.zeros(0, np.int64),
    finish_reason="abort",
)
"""The answer to a request that was interrupted before its first token."""


@dataclass(frozen=True, eq=False)
class PendingRequest:
    """A request and the future of its answer."""

    request: GenerationRequest
    answer: "asyncio.Future[GenerationResponse]"

    def resolve(self, response: GenerationResponse) -> None:
        """Set the answer, unless the caller was cancelled."""
        if not self.answer.done():
            self.answer.set_result(response)

    def fail(self, error: Exception) -> None:
        """Raise `error` at the caller, unless it was cancelled."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Admission:
    """The waiting requests of one engine."""

    def __init__(self, *, lockstep: bool) -> None:
        self.lockstep = lockstep
        self.unfinished = 0  # episodes that are expected and have not ended
        self.at_once = 0
        self.waiting: list[PendingRequest] = []

    def expect(self, *, episodes: int, at_once: int) -> None:
        """See `TextEngine`."""
        self.unfinished += episodes
        self.at_once = at_once

    @property
    def all_wait(self) -> bool:
        """Whether every episode that can run has a waiting request."""
        waiting = {pending.request.of_episode for pending in self.waiting}
        return len(waiting) >= min(self.unfinished, self.at_once)

    def admit(self, *, idle: bool) -> list[PendingRequest]:
        """Remove and return the requests that join now; `idle` means that all earlier ones are
        answered.
        """
        if self.lockstep:
            if not idle or not self.all_wait:
                return []
            self.waiting.sort(key=lambda pending: pending.request.uid)
        admitted, self.waiting = self.waiting, []
        return admitted


def check_length(request: GenerationRequest, *, longest: int) -> None:
    """Refuse a request that the engine cannot continue.

    Raises:
        ConfigError: No prompt, nothing to generate, or more than `longest` tokens in all.
    """
    prompt = len(request.input_ids)
    new = request.max_new_tokens
    asked = f"Episode {request.uid} requests {new} tokens after a prompt of {prompt}"
    if prompt == 0 or new < 1:
        raise ConfigError(f"{asked}: both must be at least 1.")
    if prompt + new > longest:
        raise ConfigError(
            f"{asked}, but the engine's limit is {longest}: the model's length or, with vLLM, "
            "data.max_prompt_length + data.max_response_length if that is less. Request fewer "
            "tokens, or change these."
        )
