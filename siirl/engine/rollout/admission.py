"""Who is waiting for an engine that generates text, and when they are taken up.

As they come; or in lockstep, a round at a time: only when every episode that can be running is
waiting, in the order of their uids, and the next only when all of these are answered. What a
forward pass is over then depends on no clock.
"""

import asyncio
from dataclasses import dataclass

import numpy as np

from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.errors import ConfigError

NOTHING = GenerationResponse(
    tokens=np.zeros(0, np.int64),
    log_probs=np.zeros(0, np.float32),
    versions=np.zeros(0, np.int64),
    finish_reason="abort",
)
"""The answer to a request that was interrupted before its first token."""


@dataclass(frozen=True, eq=False)
class Job:
    """A request and the future of who waits for the answer."""

    request: GenerationRequest
    answer: "asyncio.Future[GenerationResponse]"

    def resolve(self, response: GenerationResponse) -> None:
        """Hand the answer over, if somebody still waits."""
        if not self.answer.done():
            self.answer.set_result(response)

    def fail(self, error: Exception) -> None:
        """Let who waits see the error."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Admission:
    """The waiting requests of one engine."""

    def __init__(self, *, lockstep: bool) -> None:
        self.lockstep = lockstep
        self.unfinished, self.at_once = 0, 0
        self.waiting: list[Job] = []

    def expect(self, *, episodes: int, at_once: int) -> None:
        """See `TextEngine`."""
        self.unfinished += episodes
        self.at_once = at_once

    def episode_ended(self) -> None:
        """See `TextEngine`."""
        self.unfinished -= 1

    def take_up(self, *, idle: bool) -> list[Job]:
        """Those who are taken up now; `idle` if everybody taken up before is answered."""
        if self.lockstep:
            if not idle or len(self.waiting) < min(self.unfinished, self.at_once):
                return []
            self.waiting.sort(key=lambda job: job.request.uid)
        taken, self.waiting = self.waiting, []
        return taken


def check_length(request: GenerationRequest, *, longest: int) -> None:
    """Refuse what the engine cannot continue.

    Raises:
        ConfigError: No prompt, nothing to generate, or more than `longest` tokens in all.
    """
    prompt, new = len(request.input_ids), request.max_new_tokens
    if prompt == 0 or new < 1:
        raise ConfigError(
            f"Episode {request.uid} asks for {new} tokens after a prompt of {prompt}: both must be at least 1."
        )
    if prompt + new > longest:
        raise ConfigError(
            f"Episode {request.uid} asks for {new} tokens after a prompt of {prompt}, and the engine ends at {longest}: the model's length "
            "or, with vLLM, data.max_prompt_length + data.max_response_length where that is less. Ask for less, or change these."
        )
