"""Requests and responses of an engine that generates text: token ids in, token ids and log-probs
out.

Generated tokens are never re-encoded from text: they go back into the model unchanged. Temperature,
top-p and top-k belong to the engine, because training must divide by the same temperature. The seed
belongs to the request, so an episode does not depend on the other episodes in its batch.
"""

# T generated token

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from siirl.engine.rollout.engine import RolloutEngine

if TYPE_CHECKING:  # these modules import Pillow or gymnasium
    from siirl.models.chat import ChatTokenizer
    from siirl.models.seen_pictures import Pictures

FinishReason = Literal["stop", "length", "abort"]
"""`stop`: an end-of-text token or a stop string. `length`: the token limit. `abort`: interrupted
from outside; the response holds the tokens so far.
"""


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt to be continued."""

    uid: str
    """The episode's unique id; in lockstep mode requests are batched in its order."""
    input_ids: tuple[int, ...]
    max_new_tokens: int
    seed: tuple[int, ...]
    """Seeds the generator that draws this continuation."""
    greedy: bool = False
    """Take greedy tokens (the most likely ones) instead of sampling."""
    stop: tuple[str, ...] = ()
    """Strings that end the continuation; the tokens that contain the string are kept."""
    episode: str = ""
    """Id of the episode, if several of its agents send requests; empty: `uid`."""
    agent: int = 0
    """The agent of the episode that generates."""
    pictures: Pictures | None = None
    """Pictures in the prompt, for a vision-language model."""

    @property
    def of_episode(self) -> str:
        """Id of the episode."""
        return self.episode or self.uid


@dataclass(frozen=True)
class GenerationResponse:
    """A continuation, including the token that ended it."""

    tokens: NDArray[np.int64]  # [T]
    log_probs: NDArray[np.float32]  # [T], under the sampling temperature
    versions: NDArray[np.int64]  # [T], of the weights that produced each token
    finish_reason: FinishReason


class TextEngine(RolloutEngine, Protocol):
    """Continues many prompts at once; used from one event loop.

    Interrupted requests return the tokens they have, with the reason `abort`.
    """

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        """Continue one prompt; returns when the continuation has ended.

        Raises:
            ConfigError: The prompt and its continuation exceed the model's length.
        """


@dataclass(frozen=True)
class EngineWithTokenizer:
    """An engine and its model's tokenizer, with which an agent group plays roles."""

    engine: TextEngine
    tokenizer: ChatTokenizer
