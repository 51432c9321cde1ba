"""What an episode asks of an engine that generates text, and what it gets: token ids in, token ids
and log-probs out.

Tokens are never made anew from text: what was generated goes back in as it came out. Temperature,
top-p and top-k belong to the engine, because training must divide by the same temperature; the seed
belongs to the request, so that an episode does not depend on which others it was batched with.
"""

# T generated token

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "abort"]
"""An end-of-text token or a stop string; no tokens left; interrupted from outside, with what there
is.
"""


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt that wants a continuation."""

    uid: str
    """The episode's unique id; in lockstep mode requests are batched in its order."""
    input_ids: tuple[int, ...]
    max_new_tokens: int
    seed: tuple[int, ...]
    """Of the generator that draws this continuation."""
    greedy: bool = False
    """Take the most likely tokens instead of sampling."""
    stop: tuple[str, ...] = ()
    """The continuation ends where its text contains one of these; the tokens that made it up are
    kept.
    """


@dataclass(frozen=True)
class GenerationResponse:
    """A continuation, the token that ended it included."""

    tokens: NDArray[np.int64]  # [T]
    log_probs: NDArray[np.float32]  # [T], under the temperature that acted
    versions: NDArray[np.int64]  # [T], of the weights that produced each token
    finish_reason: FinishReason


class TextEngine(Protocol):
    """Continues many prompts at once; used from one event loop."""

    policy_version: int

    def expect(self, *, episodes: int, at_once: int) -> None:
        """Announce `episodes` more episodes, of which `at_once` can run at the same time."""

    def episode_ended(self) -> None:
        """One of the expected episodes is over, finished or failed."""

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        """Continue one prompt; returns when it has ended.

        Raises:
            ConfigError: The prompt and its continuation are longer than the model can be.
        """

    def interrupt(self) -> None:
        """End every running request now, with the tokens it has and the reason `abort`; later
        requests are served as usual.
        """

    def update_weights(self, version: int) -> None:
        """Tell the engine that its weights are those of `version`."""

    def take_stats(self) -> Mapping[str, float]:
        """`busy_s`, `calls` (requests), `forward_passes` and `tokens` since the last call."""

    def close(self) -> None:
        """Let go of the model; safe to call twice."""
