"""Autoregressive distribution of tokens: each is generated given those before it.

Left out: the network (`siirl.models.openvla`).
"""

# N observation, T token of a chunk, V bin, U uniform number

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from siirl.algos.distributions import ActionDistribution, Categorical
from siirl.algos.log_probs import TokenScores

NextLogits = Callable[[torch.Tensor | None], torch.Tensor]
"""Maps the last token, int64 [N], to the logits [N, V] of the next one; None asks for the first."""


@dataclass(eq=False)
class TokenByToken(ActionDistribution):
    """A token of V bins at each place, given the observation and the tokens before it.

    Args:
        logits: Maps `context` and the tokens of a chunk, int64 [N, T], to the logits [N, T, V] of
            all of them; called once to score choices.
        generation: Maps `context` to the function that generates: it is called once per token.
        context: The observations, [N, ...].
        tokens: T.
        temperature: Divides the logits.
    """

    logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    generation: Callable[[torch.Tensor], NextLogits]
    context: torch.Tensor
    tokens: int = field(kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)

    @property
    def shape(self) -> tuple[int, int]:
        """See `ActionDistribution.shape`."""
        return self.context.shape[0], self.tokens

    def tempered(self, temperature: float) -> "TokenByToken":
        """The same distribution at a temperature, which applies to one token after the other."""
        return TokenByToken(
            self.logits,
            self.generation,
            self.context,
            tokens=self.tokens,
            temperature=self.temperature * temperature,
        )

    @torch.no_grad()
    def act(
        self, uniforms_NU: torch.Tensor | None, *, top_p: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ActionDistribution.act`; log-probs are those of the generation itself."""
        following = self.generation(self.context)
        chosen: list[torch.Tensor] = []
        log_probs: list[torch.Tensor] = []
        for place in range(self.tokens):
            logits_NV = following(chosen[-1][:, 0] if chosen else None)
            token = Categorical(logits_NV[:, None], temperature=self.temperature)
            uniforms_N1 = None if uniforms_NU is None else uniforms_NU[:, place : place + 1]
            choice_N1, log_prob_N1 = token.act(uniforms_N1, top_p=top_p)
            chosen.append(choice_N1)
            log_probs.append(log_prob_N1)
        return torch.cat(chosen, dim=1), torch.cat(log_probs, dim=1)

    def sample(self, uniforms_NU: torch.Tensor, *, top_p: float = 1.0) -> torch.Tensor:
        """See `ActionDistribution.sample`; int64 [N, T]."""
        return self.act(uniforms_NU, top_p=top_p)[0]

    def mode(self) -> torch.Tensor:
        """The greedy tokens: at each place the most likely one, given those before it."""
        return self.act(None)[0]

    def log_prob(self, choices: torch.Tensor) -> torch.Tensor:
        """See `ActionDistribution.log_prob`."""
        return self._given(choices).log_prob(choices)

    def entropy(self) -> torch.Tensor:
        """Entropy of each token given the greedy tokens before it; `scores` conditions on the
        choices instead.
        """
        return self._given(self.mode()).entropy()

    def scores(self, choices: torch.Tensor) -> TokenScores:
        """See `ActionDistribution.scores`; the entropy is of each token given those before it."""
        return self._given(choices).scores(choices)

    def imitation_loss(
        self, values_NT: torch.Tensor, *, generator: torch.Generator
    ) -> torch.Tensor:
        """Cross-entropy; see `ActionDistribution.imitation_loss`."""
        return self._given(values_NT).imitation_loss(values_NT, generator=generator)

    @classmethod
    def check_settings(cls, *, temperature: float, top_p: float, entropy_coef: float) -> None:
        """See `ActionDistribution.check_settings`; all have a meaning."""

    def _given(self, tokens_NT: torch.Tensor) -> Categorical:
        logits_NTV = self.logits(self.context, tokens_NT)
        return Categorical(logits_NTV, temperature=self.temperature)
