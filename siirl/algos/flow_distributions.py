"""Flow matching as an action distribution, with three definitions of log-probs.

A network gives the velocity v(x, t) along the straight paths x_t = t a + (1 - t) e from noise e at
time 0 to a chunk of actions a at time 1 (Lipman et al. 2023, arXiv 2210.02747). K Euler steps of
size d = 1/K from a random x_0 make a chunk, but its log-prob is unknown. Each definition therefore
makes something else random:

`FlowNoise`: every step, with a learnt deviation (Flow-Noise of piRL, arXiv 2510.25889, section 4.1;
ReinFlow, arXiv 2505.22094, section 4). A choice is the whole chain, and its log-prob is exact.
`FlowSDE`: one step, drawn at random; it is a step of a stochastic differential equation with the
same marginals (Flow-SDE of piRL, section 4.2, with its hybrid sampling). A choice is this step.
`FlowEnd`: only the end of the chain from x_0 = 0, by a Gaussian with a learnt deviation. A choice
is the chunk.

A log-prob of a token is the sum over the random steps: their Gaussians are diagonal, so that tokens
are independent given the chain. Actions of a chunk that were not executed are left out of the
loss; as later steps of the others depend on them, that is an approximation for cut chunks.

A published network may denoise more numbers than an environment uses: padded dimensions, and
actions after the executed ones. These `unseen` numbers take Euler steps without noise; a choice
stores their values at the start of its random steps. Noise on only some coordinates leaves the
marginals unchanged (the diffusion of the stochastic differential equation is then 0 on the others).
Left out: networks (`siirl.models.tiny_flow_vla`, `siirl.models.flow_vla`).
"""

# N observation, T = K*A token of a chunk, E unseen number, F = T+E number that the network moves,
# S step of denoising, U uniform number, J number of a choice, D feature

import abc
import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.nn import functional

from siirl.algos.distributions import (
    ActionDistribution,
    Gaussian,
    normal_entropy,
    normal_log_prob,
    standard_normal,
)
from siirl.errors import ConfigError

BEFORE, AFTER, STEP, VALUE = range(4)  # numbers of a choice of FlowSDE


class Velocity(Protocol):
    """A denoising network."""

    def __call__(
        self, context_ND: torch.Tensor, x_NSF: torch.Tensor, time_NS: torch.Tensor, /
    ) -> torch.Tensor:
        """v(x, t) [N, S, F] at `x_NSF` (tokens first) and `time_NS`, given the observations'
        features.
        """


@dataclass(eq=False)
class FlowDistribution(ActionDistribution):
    """Common base of the definitions.

    Args:
        velocity: Called once for all steps of a scored choice, and once per step to sample.
        context: Features [N, D] of the observations, or keys and values of their places [N, ...].
        tokens: T.
        steps: K.
        unseen: E.
    """

    velocity: Velocity
    context: torch.Tensor
    tokens: int = field(kw_only=True)
    steps: int = field(kw_only=True)
    unseen: int = field(default=0, kw_only=True)

    @property
    def shape(self) -> tuple[int, int]:
        """See `ActionDistribution.shape`."""
        return self.context.shape[0], self.tokens

    def tempered(self, temperature: float) -> "FlowDistribution":
        """The distribution itself: its only temperature is 1."""
        _require_no_temperature(type(self).__name__, temperature)
        return self

    def imitation_loss(
        self, values_NT: torch.Tensor, *, generator: torch.Generator
    ) -> torch.Tensor:
        """`|v(x_t, t) - (a - e)|^2` at t uniform in [0, 1) (arXiv 2210.02747, equation 23).

        Raises:
            ConfigError: The network has unseen numbers; demonstrations have no values for them.
        """
        if self.unseen:
            raise ConfigError(
                f"{type(self).__name__} moves {self.unseen} numbers besides the {self.tokens} of a "
                "chunk, and demonstrations have values only for the chunk: fine-tune this policy "
                "with the library that published it."
            )
        noise_NT = torch.randn(values_NT.shape, generator=generator).to(values_NT.device)
        time_N1 = torch.rand((len(values_NT), 1), generator=generator).to(values_NT.device)
        x_NT = time_N1 * values_NT + (1 - time_N1) * noise_NT
        v_NT = self.velocity(self.context, x_NT[:, None], time_N1)[:, 0]
        return (v_NT.float() - (values_NT - noise_NT)).square().mean()

    @classmethod
    def check_settings(cls, *, temperature: float, top_p: float, entropy_coef: float) -> None:
        """See `ActionDistribution.check_settings`."""
        super().check_settings(temperature=temperature, top_p=top_p, entropy_coef=entropy_coef)
        _require_no_temperature(cls.__name__, temperature)

    @staticmethod
    @abc.abstractmethod
    def uniforms(*, tokens: int, unseen: int, steps: int) -> int:
        """U, the uniform numbers that sample a chunk."""

    @abc.abstractmethod
    def sample(self, uniforms_NU: torch.Tensor, *, top_p: float = 1.0) -> torch.Tensor:
        """See `ActionDistribution.sample`."""

    def _time_NS(self) -> torch.Tensor:
        """Times of the steps."""
        time_S = torch.arange(self.steps, device=self.context.device) / self.steps
        return time_S.expand(len(self.context), -1)

    def _velocity_at(self, x_NF: torch.Tensor, step: int) -> torch.Tensor:
        time_N1 = torch.full((len(x_NF), 1), step / self.steps, device=x_NF.device)
        return self.velocity(self.context, x_NF[:, None], time_N1)[:, 0].float()

    def _with_seen(self, x_NF: torch.Tensor, seen_NT: torch.Tensor) -> torch.Tensor:
        """`x_NF` with new tokens; only the tokens if there are no unseen numbers."""
        if not self.unseen:
            return seen_NT
        return torch.cat([seen_NT, x_NF[:, self.tokens :]], dim=1)

    def _spread(self, numbers: torch.Tensor) -> torch.Tensor:
        """Unseen numbers [N, ...] over the tokens of a choice, [N, T, J], with zeros at the end."""
        flat = numbers.flatten(1)
        width = -(-flat.shape[1] // self.tokens)
        padded = functional.pad(flat, (0, width * self.tokens - flat.shape[1]))
        return padded.view(len(padded), self.tokens, width)

    def _euler_chain(self) -> list[torch.Tensor]:
        """The K + 1 states [N, F] of the chain without noise; it begins at the noise's mode, 0."""
        size = (len(self.context), self.tokens + self.unseen)
        chain = [self.context.new_zeros(size, dtype=torch.float32)]
        for step in range(self.steps):
            chain.append(chain[-1] + self._velocity_at(chain[-1], step) / self.steps)
        return chain


def _require_no_temperature(name: str, temperature: float) -> None:
    if temperature != 1:
        raise ConfigError(
            f"actor_rollout_ref.rollout.temperature={temperature}: {name} explores by its own "
            "noise; leave it at 1, and set the noise in actor_rollout_ref.model.options."
        )


@dataclass(eq=False)
class FlowNoise(FlowDistribution):
    """Every step is N(x + v d, s^2) with a learnt deviation s.

    Choices are chains [N, T, K+1], followed by those of the unseen numbers up to the last step.
    Their log-prob is `log N(x_0; 0, 1) + sum_k log N(x_{k+1}; x_k + v_k d, s_k^2)` (piRL, equations
    4 and 5; ReinFlow's `PPOFlow.get_logprobs`). RLinf takes the mean over steps; the sum is the
    log-prob. With unseen numbers it is the log-prob of the tokens given the others.

    Args:
        log_std: [N, K, T]: for each step, computed from the observation and the time.
    """

    log_std: torch.Tensor = field(kw_only=True)

    @staticmethod
    def uniforms(*, tokens: int, unseen: int, steps: int) -> int:
        """See `FlowDistribution.uniforms`: x_0, and the noise of each step."""
        return tokens + unseen + steps * tokens

    def sample(self, uniforms_NU: torch.Tensor, *, top_p: float = 1.0) -> torch.Tensor:
        """See `ActionDistribution.sample`."""
        numbers = self.tokens + self.unseen
        first_NF, others = standard_normal(uniforms_NU).tensor_split([numbers], dim=1)
        noise_NST = others.view(-1, self.steps, self.tokens)
        std_NST = self.log_std.float().exp()
        chain = [first_NF]
        for step in range(self.steps):
            mean_NF = chain[-1] + self._velocity_at(chain[-1], step) / self.steps
            seen_NT = mean_NF[:, : self.tokens] + std_NST[:, step] * noise_NST[:, step]
            chain.append(self._with_seen(mean_NF, seen_NT))
        return self._choice(chain)

    def mode(self) -> torch.Tensor:
        """The chain without noise."""
        return self._choice(self._euler_chain())

    def values(self, choices: torch.Tensor) -> torch.Tensor:
        """See `ActionDistribution.values`: the end of the chain."""
        return choices[..., self.steps]

    def log_prob(self, choices: torch.Tensor) -> torch.Tensor:
        """See `ActionDistribution.log_prob`."""
        chain_NST = choices[..., : self.steps + 1].transpose(1, 2)
        before_NST, after_NST = chain_NST[:, :-1], chain_NST[:, 1:]
        before_NSF = torch.cat([before_NST, self._unseen_NSE(choices)], dim=-1)
        v_NSF = self.velocity(self.context, before_NSF, self._time_NS()).float()
        v_NST = v_NSF[..., : self.tokens]
        steps_NST = normal_log_prob(
            after_NST, mean=before_NST + v_NST / self.steps, log_std=self.log_std.float()
        )
        first_NT = chain_NST[:, 0]
        zero = torch.zeros((), device=first_NT.device)
        return normal_log_prob(first_NT, mean=zero, log_std=zero) + steps_NST.sum(1)

    def entropy(self) -> torch.Tensor:
        """Entropy of the chain; exact, because deviations do not depend on the chain's state."""
        first = normal_entropy(torch.zeros((), device=self.context.device))
        return first + normal_entropy(self.log_std.float()).sum(1)

    def _choice(self, chain: list[torch.Tensor]) -> torch.Tensor:
        chain_NFS = torch.stack(chain, dim=-1)
        seen_NTS = chain_NFS[:, : self.tokens]
        if not self.unseen:
            return seen_NTS
        unseen_NES = chain_NFS[:, self.tokens :, :-1]
        return torch.cat([seen_NTS, self._spread(unseen_NES)], dim=-1)

    def _unseen_NSE(self, choices: torch.Tensor) -> torch.Tensor:
        flat = choices[..., self.steps + 1 :].flatten(1)[:, : self.unseen * self.steps]
        return flat.view(len(flat), self.unseen, self.steps).transpose(1, 2)


@dataclass(eq=False)
class FlowEnd(FlowDistribution):
    """A Gaussian around the end of the chain without noise, which starts at the mode of x_0.

    Choices are chunks [N, T]. The log-prob is exact, and its gradient passes through all steps;
    with the other definitions the stored state before a random step is given. Chunks that only
    another x_0 leads to are not explored.

    Args:
        log_std: [N, T], computed from the observation.
    """

    log_std: torch.Tensor = field(kw_only=True)

    @staticmethod
    def uniforms(*, tokens: int, unseen: int, steps: int) -> int:
        """See `FlowDistribution.uniforms`: the noise of the end."""
        return tokens

    def sample(self, uniforms_NU: torch.Tensor, *, top_p: float = 1.0) -> torch.Tensor:
        """See `ActionDistribution.sample`."""
        return self._gaussian().sample(uniforms_NU)

    def mode(self) -> torch.Tensor:
        """The end of the chain."""
        return self._gaussian().mode()

    def log_prob(self, choices: torch.Tensor) -> torch.Tensor:
        """See `ActionDistribution.log_prob`."""
        return self._gaussian().log_prob(choices)

    def entropy(self) -> torch.Tensor:
        """See `ActionDistribution.entropy`."""
        return normal_entropy(self.log_std.float())

    def act(
        self, uniforms_NU: torch.Tensor | None, *, top_p: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ActionDistribution.act`; denoises once."""
        return self._gaussian().act(uniforms_NU, top_p=top_p)

    def _gaussian(self) -> Gaussian:
        return Gaussian(self._euler_chain()[-1][:, : self.tokens], self.log_std)


@dataclass(eq=False)
class FlowSDE(FlowDistribution):
    """One step, drawn uniformly for each chunk, is random; the others are Euler steps.

    Choices are [N, T, 4]: the token before and after the random step, the step's number, and the
    value at the end of the chain; the unseen numbers before that step follow. The log-prob is that
    of the random step, given the rest.

    Args:
        noise: The level a of the deviation `s_t = a sqrt((1 - t) / t)`.
    """

    noise: float = field(kw_only=True)

    @staticmethod
    def uniforms(*, tokens: int, unseen: int, steps: int) -> int:
        """See `FlowDistribution.uniforms`: x_0, the noise of the random step, its number."""
        return tokens + unseen + tokens + 1

    def sample(self, uniforms_NU: torch.Tensor, *, top_p: float = 1.0) -> torch.Tensor:
        """See `ActionDistribution.sample`."""
        step_N1 = (uniforms_NU[:, -1:] * self.steps).long().clamp(max=self.steps - 1)
        normal = standard_normal(uniforms_NU[:, :-1])
        x_NF, noise_NT = normal.tensor_split([self.tokens + self.unseen], dim=1)
        before_NF = after_NF = x_NF
        for step in range(self.steps):
            v_NF = self._velocity_at(x_NF, step)
            mean_NT, log_std_N1 = self._transition(
                x_NF[:, : self.tokens], v_NF[:, : self.tokens], torch.full_like(step_N1, step)
            )
            is_random_N1 = step_N1 == step
            euler_NF = x_NF + v_NF / self.steps
            random_NF = self._with_seen(euler_NF, mean_NT + log_std_N1.exp() * noise_NT)
            next_NF = torch.where(is_random_N1, random_NF, euler_NF)
            before_NF = torch.where(is_random_N1, x_NF, before_NF)
            after_NF = torch.where(is_random_N1, next_NF, after_NF)
            x_NF = next_NF
        return self._choice(before_NF, after_NF, step_N1, x_NF)

    def mode(self) -> torch.Tensor:
        """The chain without noise; the choice keeps its first step."""
        chain = self._euler_chain()
        first_N1 = torch.zeros((len(self.context), 1), device=self.context.device)
        return self._choice(chain[0], chain[1], first_N1, chain[-1])

    def values(self, choices: torch.Tensor) -> torch.Tensor:
        """See `ActionDistribution.values`."""
        return choices[..., VALUE]

    def log_prob(self, choices: torch.Tensor) -> torch.Tensor:
        """See `ActionDistribution.log_prob`."""
        step_N1 = choices[:, :1, STEP].long()
        before_NT = choices[..., BEFORE]
        unseen_NE = choices[..., VALUE + 1 :].flatten(1)[:, : self.unseen]
        before_NF = torch.cat([before_NT, unseen_NE], dim=1)
        v_NF = self.velocity(self.context, before_NF[:, None], step_N1 / self.steps)[:, 0].float()
        mean_NT, log_std_N1 = self._transition(before_NT, v_NF[:, : self.tokens], step_N1)
        return normal_log_prob(choices[..., AFTER], mean=mean_NT, log_std=log_std_N1)

    def entropy(self) -> torch.Tensor:
        """Entropy of the random step, averaged over the steps; it depends on no weight."""
        steps_S1 = torch.arange(self.steps, device=self.context.device)[:, None]
        return normal_entropy(self._log_std(steps_S1)).mean().expand(self.shape)

    @classmethod
    def check_settings(cls, *, temperature: float, top_p: float, entropy_coef: float) -> None:
        """See `ActionDistribution.check_settings`."""
        super().check_settings(temperature=temperature, top_p=top_p, entropy_coef=entropy_coef)
        if entropy_coef != 0:
            raise ConfigError(
                f"actor_rollout_ref.actor.entropy_coef={entropy_coef}: the entropy of "
                f"{cls.__name__} depends on no weight, so this term would do nothing; leave it at "
                "0, or learn the noise (actor_rollout_ref.model.options.noise=learnt or end)."
            )

    def _transition(
        self, x_NT: torch.Tensor, v_NT: torch.Tensor, step_N1: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean [N, T] and log-deviation [N, 1] of a random step.

        dx = (v - s^2 / (2 (1 - t)) (x - t v)) dt + s dw, where x - t v is the noise that v implies
        and -(x - t v) / (1 - t) the score; the deviation of a step is s sqrt(d) (piRL, equations 8
        and 9, whose time runs the other way).
        """
        time_N1 = step_N1 / self.steps
        log_std_N1 = self._log_std(step_N1)
        pull_N1 = log_std_N1.exp().square() / (2 * (1 - time_N1))
        return x_NT + v_NT / self.steps - pull_N1 * (x_NT - time_N1 * v_NT), log_std_N1

    def _log_std(self, step: torch.Tensor) -> torch.Tensor:
        """log(s_t sqrt(d)); at t = 0, where s is infinite, `s_0 = a sqrt(1 / d)` (RLinf's
        `sample_mean_var_val`, which divides by the time of the second step).
        """
        time = step / self.steps
        divisor = torch.where(step == 0, 1 / self.steps, time)
        return math.log(self.noise) + 0.5 * torch.log((1 - time) / divisor / self.steps)

    def _choice(
        self,
        before_NF: torch.Tensor,
        after_NF: torch.Tensor,
        step_N1: torch.Tensor,
        value_NF: torch.Tensor,
    ) -> torch.Tensor:
        before_NT, after_NT, value_NT = (
            numbers[:, : self.tokens] for numbers in (before_NF, after_NF, value_NF)
        )
        step_NT = step_N1.to(before_NT.dtype).expand(self.shape)
        seen = torch.stack([before_NT, after_NT, step_NT, value_NT], dim=-1)
        if not self.unseen:
            return seen
        return torch.cat([seen, self._spread(before_NF[:, self.tokens :])], dim=-1)
