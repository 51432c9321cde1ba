"""Flow-Noise against ReinFlow's log-prob and entropy of a chain, written as loops over numbers.

Sources: arXiv 2505.22094, section 4, and github.com/ReinFlow/ReinFlow at 26c83a4,
`model/flow/ft_ppo/ppoflow.py`: the formulas in the docstring of `PPOFlow.get_logprobs`,

    p(x_0 | s) = N(0, 1),  p(x_{k+1} | x_k, s) = N(x_k + v(x_k, s) / K, sigma_k^2),
    log p(x_0, ..., x_K | s) = log p(x_0) + sum_k log p(x_{k+1} | x_k, s),
    H(x_0, ..., x_K) = H(x_0) + sum_k H(x_{k+1} | x_k, s).

Common, and compared here: these formulas for given velocities and deviations, and their gradient.
Conventions that differ there:

- a chunk has one log-prob, the sum over its numbers; here each token has its own, and the sum over
  tokens is compared
- `account_for_initial_stochasticity=false` leaves log p(x_0) out; it has no gradient
- two options divide by the K + 1 terms (by K without the first) and by the chunk's numbers; the
  entropy is always divided by the terms (an entropy rate)
- step k has the time k / (K - 1) (linspace); here k / K
- means are clipped (`denoised_clip_value`), as are the noise in units of its deviation
  (`randn_clip_value`), the last action, and log-probs in the loss; here nothing is clipped
- sampling has a further lower bound of the deviation (`min_sampling_denoising_std`)
- the deviation depends on the observation and the time or the step, as here; its bounds in a tanh
  are tested in tests/models/test_tiny_flow_vla.py
"""

import math

import pytest
import torch

from siirl.algos.flow_distributions import FlowNoise

ROWS, STEPS, TOKENS = 4, 5, 3
TOLERANCE = 1e-5


def log_prob_loop(chain, velocity, log_std):
    """log p of one chain: numbers [K + 1][T] from velocities and log-deviations [K][T]."""
    terms = [-(x**2) / 2 - math.log(2 * math.pi) / 2 for x in chain[0]]
    for k in range(STEPS):
        for t in range(TOKENS):
            mean, sigma = chain[k][t] + velocity[k][t] / STEPS, math.exp(log_std[k][t])
            z = (chain[k + 1][t] - mean) / sigma
            terms.append(-(z**2) / 2 - math.log(sigma) - math.log(2 * math.pi) / 2)
    return math.fsum(terms)


def gradient_loop(chain, velocity, log_std):
    """Derivatives of `log_prob_loop`: z / (K sigma) by v_k and z^2 - 1 by log sigma_k."""
    by_velocity, by_log_std = [], []
    for k in range(STEPS):
        sigmas = [math.exp(number) for number in log_std[k]]
        means = [x + v / STEPS for x, v in zip(chain[k], velocity[k], strict=True)]
        z = [(x - m) / s for x, m, s in zip(chain[k + 1], means, sigmas, strict=True)]
        by_velocity.append([z[t] / STEPS / sigmas[t] for t in range(TOKENS)])
        by_log_std.append([z[t] ** 2 - 1 for t in range(TOKENS)])
    return by_velocity, by_log_std


def entropy_loop(log_std):
    """H of a chain: 1/2 log(2 pi e sigma^2) for each number, with sigma 1 for the first ones."""
    first = [0.5 * math.log(2 * math.pi * math.e)] * TOKENS
    return math.fsum(
        first
        + [
            0.5 * math.log(2 * math.pi * math.e * math.exp(number) ** 2)
            for step in log_std
            for number in step
        ]
    )


@pytest.fixture
def given():
    """Chains [N, K + 1, T], with velocities and log-deviations [N, K, T] that have a gradient."""
    generator = torch.Generator().manual_seed(0)
    velocity = torch.randn(ROWS, STEPS, TOKENS, generator=generator)
    share = torch.rand(ROWS, STEPS, TOKENS, generator=generator)
    log_std = math.log(0.08) + share * math.log(0.4 / 0.08)
    states = [torch.randn(ROWS, TOKENS, generator=generator)]
    for k in range(STEPS):
        noise = torch.randn(ROWS, TOKENS, generator=generator)
        states.append(states[-1] + velocity[:, k] / STEPS + log_std[:, k].exp() * noise)
    return torch.stack(states, 1), velocity.requires_grad_(), log_std.requires_grad_()


def flow_noise(velocity_NKT, log_std_NKT):
    """The distribution whose network gives these velocities, whatever the state."""

    def velocity(context_ND, x_NST, time_NS):
        steps = (time_NS[0] * STEPS).round().long()
        return velocity_NKT[:, steps]

    return FlowNoise(
        velocity, torch.zeros(ROWS, 1), tokens=TOKENS, steps=STEPS, log_std=log_std_NKT
    )


def as_choices(chains):
    return chains.transpose(1, 2)


def close(found, expected):
    torch.testing.assert_close(
        found.detach().double(),
        torch.tensor(expected, dtype=torch.float64),
        rtol=TOLERANCE,
        atol=TOLERANCE,
    )


def test_the_log_prob_of_a_chain_is_that_of_reinflow(given):
    chains, velocity, log_std = given
    found = flow_noise(velocity, log_std).log_prob(as_choices(chains)).sum(1)
    rows = zip(chains.tolist(), velocity.tolist(), log_std.tolist(), strict=True)
    close(found, [log_prob_loop(*row) for row in rows])


def test_its_gradient_is_that_of_reinflow(given):
    chains, velocity, log_std = given
    flow_noise(velocity, log_std).log_prob(as_choices(chains)).sum().backward()
    rows = zip(chains.tolist(), velocity.tolist(), log_std.tolist(), strict=True)
    by_velocity, by_log_std = zip(*(gradient_loop(*row) for row in rows), strict=True)
    close(velocity.grad, by_velocity)
    close(log_std.grad, by_log_std)


def test_the_entropy_of_a_chain_is_that_of_reinflow_and_its_gradient_is_one(given):
    _, velocity, log_std = given
    found = flow_noise(velocity, log_std).entropy().sum(1)
    close(found, [entropy_loop(row) for row in log_std.tolist()])
    found.sum().backward()
    assert velocity.grad is None
    close(log_std.grad, torch.ones_like(log_std).tolist())


def test_a_drawn_chain_is_scored_as_reinflow_scores_it(given):
    """Numbers of `sample`, instead of chains that this file made."""
    _, velocity, log_std = given
    distribution = flow_noise(velocity, log_std)
    numbers = distribution.uniforms(tokens=TOKENS, unseen=0, steps=STEPS)
    uniforms = torch.rand(ROWS, numbers, generator=torch.Generator().manual_seed(1))
    choices, log_probs = distribution.act(uniforms)
    chains = choices.transpose(1, 2).tolist()
    rows = zip(chains, velocity.tolist(), log_std.tolist(), strict=True)
    close(log_probs.sum(1), [log_prob_loop(*row) for row in rows])
