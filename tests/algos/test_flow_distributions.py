"""Flow distributions where their log-probs are known in closed form, and against RLinf's weights."""

import math

import pytest
import torch

from siirl.algos.flow_distributions import (
    AFTER,
    BEFORE,
    STEP,
    VALUE,
    FlowEnd,
    FlowNoise,
    FlowSDE,
)
from siirl.errors import ConfigError

TOKENS, STEPS = 3, 4
MATRIX = torch.tensor([[0.5, -0.3, 0.1], [0.2, 0.4, 0.0], [-0.6, 0.1, -0.2]])
DRIFT = torch.tensor([0.3, -0.2, 0.1])


def linear_velocity(context_ND, x_NST, time_NS):
    """v = x M^T + t c: chains of a linear flow are jointly Gaussian."""
    return x_NST @ MATRIX.T + time_NS[..., None] * DRIFT


def towards(mean: float, std: float):
    """The exact velocity of a flow to N(mean, std^2): E[a - e | x_t], by regression on x_t."""

    def velocity(context_ND, x_NST, time_NS):
        t = time_NS[..., None]
        slope = (t * std**2 - (1 - t)) / (t**2 * std**2 + (1 - t) ** 2)
        return mean + slope * (x_NST - t * mean)

    return velocity


def flow_noise(rows: int, *, velocity=linear_velocity, steps: int = STEPS) -> FlowNoise:
    log_std = torch.linspace(-2, -1, steps * TOKENS).view(1, steps, TOKENS)
    return FlowNoise(
        velocity,
        torch.zeros(rows, 1),
        tokens=TOKENS,
        steps=steps,
        log_std=log_std.expand(rows, -1, -1),
    )


def flow_end(rows: int, *, velocity=linear_velocity, steps: int = STEPS) -> FlowEnd:
    return FlowEnd(
        velocity,
        torch.zeros(rows, 1),
        tokens=TOKENS,
        steps=steps,
        log_std=torch.linspace(-2, -1, TOKENS).expand(rows, -1),
    )


def flow_sde(rows: int, *, velocity=linear_velocity, steps: int = STEPS, noise=0.5) -> FlowSDE:
    return FlowSDE(velocity, torch.zeros(rows, 1), tokens=TOKENS, steps=steps, noise=noise)


def uniforms(rows: int, numbers: int, *, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, numbers, generator=torch.Generator().manual_seed(seed))


def numbers_of(distribution) -> int:
    return distribution.uniforms(tokens=TOKENS, unseen=0, steps=distribution.steps)


def joint_of_the_linear_chain(distribution: FlowNoise) -> torch.distributions.MultivariateNormal:
    """Mean and covariance of (x_0, ..., x_K): x_{k+1} = F x_k + t_k c d + s_k z."""
    advance = torch.eye(TOKENS) + MATRIX / STEPS
    size = (STEPS + 1) * TOKENS
    mean, mixing = torch.zeros(size), torch.zeros(size, size)
    mixing[:TOKENS, :TOKENS] = torch.eye(TOKENS)
    for step in range(STEPS):
        before = slice(step * TOKENS, (step + 1) * TOKENS)
        after = slice((step + 1) * TOKENS, (step + 2) * TOKENS)
        mean[after] = advance @ mean[before] + step / STEPS * DRIFT / STEPS
        mixing[after] = advance @ mixing[before]
        mixing[after, after] = torch.diag(distribution.log_std[0, step].exp())
    return torch.distributions.MultivariateNormal(mean, mixing @ mixing.T)


def test_the_log_prob_of_a_linear_flow_is_that_of_its_joint_gaussian():
    distribution = flow_noise(5)
    chains = distribution.sample(uniforms(5, numbers_of(distribution)))
    joint = joint_of_the_linear_chain(distribution)
    expected = joint.log_prob(chains.transpose(1, 2).flatten(1))
    torch.testing.assert_close(distribution.log_prob(chains).sum(1), expected, rtol=1e-4, atol=1e-3)


def test_the_entropy_of_a_linear_flow_is_that_of_its_joint_gaussian():
    distribution = flow_noise(1)
    expected = joint_of_the_linear_chain(distribution).entropy()
    torch.testing.assert_close(distribution.entropy().sum(), expected, rtol=1e-4, atol=1e-4)


def test_the_actions_of_a_linear_flow_have_the_covariance_in_closed_form():
    distribution = flow_noise(20_000)
    chains = distribution.sample(uniforms(20_000, numbers_of(distribution)))
    expected = joint_of_the_linear_chain(distribution).covariance_matrix[-TOKENS:, -TOKENS:]
    torch.testing.assert_close(distribution.values(chains).T.cov(), expected, rtol=0, atol=0.05)


def test_a_step_of_flow_sde_has_the_mean_and_deviation_of_rlinf():
    """RLinf's `sample_mean_var_val`: time t runs from 1 (noise) to 0, and the velocity is reversed."""
    distribution = flow_sde(40)
    choices = distribution.sample(uniforms(40, numbers_of(distribution)))
    for row, choice in enumerate(choices):
        step, x = int(choice[0, STEP]), choice[:, BEFORE]
        v = -linear_velocity(None, x[None, None], torch.tensor([[step / STEPS]]))[0, 0]
        t, delta = 1 - step / STEPS, 1 / STEPS
        sigma = 0.5 * math.sqrt(t / (1 - (t if t < 1 else 1 - delta)))
        action, noise = x - v * t, x + v * (1 - t)
        mean = action * (1 - (t - delta)) + noise * (t - delta - sigma**2 * delta / (2 * t))
        expected = torch.distributions.Normal(mean, math.sqrt(delta) * sigma).log_prob(
            choice[:, AFTER]
        )
        found = distribution.log_prob(choices)[row]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_every_step_of_flow_sde_is_drawn_equally_often():
    distribution = flow_sde(2000)
    steps = distribution.sample(uniforms(2000, numbers_of(distribution)))[:, 0, STEP]
    assert torch.bincount(steps.long()).tolist() == pytest.approx([500] * STEPS, abs=70)


def test_a_random_step_of_the_exact_flow_keeps_the_distribution_of_actions():
    """The stochastic differential equation has the marginals of the deterministic one."""
    distribution = flow_sde(5000, velocity=towards(0.4, 0.3), steps=100, noise=1.0)
    values = distribution.values(distribution.sample(uniforms(5000, numbers_of(distribution))))
    assert float(values.mean()) == pytest.approx(0.4, abs=0.02)
    assert float(values.std()) == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("make", [flow_noise, flow_sde, flow_end])
def test_the_mode_is_the_chain_of_euler_steps_from_zero(make):
    x = torch.zeros(1, 1, TOKENS)
    for step in range(STEPS):
        x = x + linear_velocity(None, x, torch.tensor([[step / STEPS]])) / STEPS
    distribution = make(1)
    torch.testing.assert_close(distribution.values(distribution.mode()), x[:, 0])


@pytest.mark.parametrize("make", [flow_noise, flow_sde, flow_end])
def test_the_mode_has_a_finite_log_prob(make):
    distribution = make(2)
    assert distribution.log_prob(distribution.mode()).isfinite().all()


@pytest.mark.parametrize("make", [flow_noise, flow_sde, flow_end])
def test_a_row_does_not_depend_on_the_others_of_its_batch(make):
    together = make(4)
    numbers = uniforms(4, numbers_of(together))
    chosen = together.sample(numbers)
    alone = make(1).sample(numbers[2:3])
    torch.testing.assert_close(alone[0], chosen[2])


def test_uniform_numbers_at_the_ends_make_finite_chains():
    for distribution in (flow_noise(2), flow_sde(2), flow_end(2)):
        ends = torch.tensor([[0.0], [1 - 2**-24]]).expand(-1, numbers_of(distribution))
        assert distribution.sample(ends).isfinite().all()


def test_flow_matching_has_no_loss_where_the_velocity_is_exact():
    values = torch.full((64, TOKENS), 0.4)

    def exact(context_ND, x_NST, time_NS):
        return (values[:, None] - x_NST) / (1 - time_NS[..., None])

    loss = flow_noise(64, velocity=exact).imitation_loss(
        values, generator=torch.Generator().manual_seed(0)
    )
    assert float(loss) < 1e-6


def test_flow_matching_of_a_velocity_of_zero_has_the_mean_square_of_action_minus_noise():
    values = torch.full((20_000, TOKENS), 0.5)
    loss = flow_noise(20_000, velocity=lambda context, x, time: torch.zeros_like(x)).imitation_loss(
        values, generator=torch.Generator().manual_seed(0)
    )
    assert float(loss) == pytest.approx(0.25 + 1.0, abs=0.03)


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        (FlowNoise, {"temperature": 0.7}, r"temperature=0.7: .* leave it at 1, and set the noise"),
        (FlowSDE, {"temperature": 0.7}, "temperature=0.7"),
        (FlowSDE, {"top_p": 0.9}, "top_p=0.9"),
        (FlowSDE, {"entropy_coef": 0.01}, r"depends on no weight.*options.noise=learnt"),
    ],
)
def test_settings_without_a_meaning_for_a_flow_are_refused(kind, settings, told):
    with pytest.raises(ConfigError, match=told):
        kind.check_settings(**{"temperature": 1.0, "top_p": 1.0, "entropy_coef": 0.0, **settings})


def test_learnt_noise_may_have_an_entropy_term():
    FlowNoise.check_settings(temperature=1.0, top_p=1.0, entropy_coef=0.01)


def test_noise_of_the_end_has_a_log_prob_whose_gradient_passes_through_all_steps():
    """v = b - 0.9 x from 0: the mean is b times a geometric sum."""
    shift = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    distribution = flow_end(6, velocity=lambda context, x, time: shift - 0.9 * x)
    slope = sum((1 - 0.9 / STEPS) ** step for step in range(STEPS)) / STEPS
    normal = torch.distributions.Normal(shift * slope, distribution.log_std[0].exp())
    choices = distribution.sample(uniforms(6, TOKENS)).detach()
    found, expected = distribution.log_prob(choices), normal.log_prob(choices)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(distribution.entropy()[0], normal.entropy())
    gradients = [torch.autograd.grad(each.sum(), shift)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_acting_with_noise_of_the_end_denoises_once():
    calls = []

    def velocity(context_ND, x_NST, time_NS):
        calls.append(float(time_NS[0, 0]))
        return linear_velocity(context_ND, x_NST, time_NS)

    distribution = flow_end(2, velocity=velocity)
    choices, log_probs = distribution.act(uniforms(2, TOKENS))
    assert calls == [step / STEPS for step in range(STEPS)]
    torch.testing.assert_close(log_probs, distribution.log_prob(choices))


def test_noise_of_the_end_leaves_unseen_numbers_without_noise():
    distribution = FlowEnd(
        wider_velocity,
        torch.zeros(1, 1),
        tokens=TOKENS,
        unseen=UNSEEN,
        steps=STEPS,
        log_std=torch.full((1, TOKENS), -9.0),
    )
    x = torch.zeros(1, 1, TOKENS + UNSEEN)
    for step in range(STEPS):
        x = x + wider_velocity(None, x, torch.tensor([[step / STEPS]])) / STEPS
    choices = distribution.sample(uniforms(1, TOKENS))
    assert choices.shape == (1, TOKENS)
    torch.testing.assert_close(choices, x[:, 0, :TOKENS], rtol=0, atol=1e-3)


def test_a_choice_of_flow_sde_ends_where_euler_steps_lead_from_its_random_step():
    distribution = flow_sde(1)
    numbers = uniforms(1, numbers_of(distribution))
    numbers[:, -1] = 0.999
    choice = distribution.sample(numbers)[0]
    assert choice[0, STEP] == STEPS - 1
    torch.testing.assert_close(choice[:, AFTER], choice[:, VALUE])


@pytest.mark.parametrize("kind", [FlowNoise, FlowSDE, FlowEnd])
def test_a_policy_gradient_moves_actions_towards_the_reward(kind):
    """REINFORCE on the reward -(a - 0.5)^2, of a flow whose velocity is a shift b: a has the mean b
    (for Flow-SDE, less what the step pulls towards the noise's mean, 0).
    """
    shift = torch.zeros(TOKENS, requires_grad=True)
    optimizer = torch.optim.Adam([shift], lr=0.05)
    named = {
        FlowNoise: {"log_std": torch.full((128, STEPS, TOKENS), -1.5)},
        FlowEnd: {"log_std": torch.full((128, TOKENS), -1.5)},
        FlowSDE: {"noise": 0.5},
    }[kind]

    def velocity(context_ND, x_NST, time_NS):
        return shift - 0.9 * x_NST

    distribution = kind(velocity, torch.zeros(128, 1), tokens=TOKENS, steps=STEPS, **named)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        numbers = torch.rand(128, numbers_of(distribution), generator=generator)
        with torch.no_grad():
            choices = distribution.sample(numbers)
        reward = -(distribution.values(choices) - 0.5).square()
        loss = -(distribution.log_prob(choices) * (reward - reward.mean(0))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        mean = distribution.values(distribution.sample(numbers)).mean(0)
    torch.testing.assert_close(mean, torch.full((TOKENS,), 0.5), rtol=0, atol=0.15)


UNSEEN = 2
WIDER = torch.tensor([[0.1, -0.2, 0.3, 0.5, -0.4]]).T * torch.tensor([[0.3, 0.1, -0.2, 0.4, 0.2]])


def wider_velocity(context_ND, x_NSF, time_NS):
    """A linear flow of three tokens and two unseen numbers."""
    return x_NSF @ WIDER.T + time_NS[..., None]


def with_unseen(kind, rows: int):
    settings = {"tokens": TOKENS, "unseen": UNSEEN, "steps": STEPS}
    if kind is FlowSDE:
        return FlowSDE(wider_velocity, torch.zeros(rows, 1), noise=0.5, **settings)
    log_std = torch.full((rows, STEPS, TOKENS), -1.0)
    return FlowNoise(wider_velocity, torch.zeros(rows, 1), log_std=log_std, **settings)


@pytest.mark.parametrize(("kind", "further"), [(FlowSDE, TOKENS + 1), (FlowNoise, STEPS * TOKENS)])
def test_the_log_prob_of_tokens_is_that_of_their_random_steps_given_unseen_numbers(kind, further):
    distribution = with_unseen(kind, 6)
    numbers = uniforms(6, TOKENS + UNSEEN + further)
    choices = distribution.sample(numbers)
    normal = torch.special.ndtri(numbers.double() + 2**-25).float()
    x_NF = normal[:, : TOKENS + UNSEEN]
    random_step = (numbers[:, -1] * STEPS).long()
    expected = 0.0
    if kind is FlowNoise:
        expected = torch.distributions.Normal(0.0, 1.0).log_prob(x_NF[:, :TOKENS])
    for step in range(STEPS):
        time = torch.full((6, 1), step / STEPS)
        v_NF = wider_velocity(None, x_NF[:, None], time)[:, 0]
        after_NF = x_NF + v_NF / STEPS
        mean, std = after_NF[:, :TOKENS], torch.full((6, TOKENS), math.exp(-1))
        if kind is FlowSDE:
            mean, log_std = distribution._transition(
                x_NF[:, :TOKENS], v_NF[:, :TOKENS], torch.full((6, 1), step)
            )
            std = log_std.exp().expand(-1, TOKENS)
        first = TOKENS + UNSEEN + (step * TOKENS if kind is FlowNoise else 0)
        drawn = mean + std * normal[:, first : first + TOKENS]
        is_random = torch.ones(6, 1, dtype=torch.bool)
        if kind is FlowSDE:
            is_random = (random_step == step)[:, None]
        log_prob = torch.distributions.Normal(mean, std).log_prob(drawn)
        expected = expected + torch.where(is_random, log_prob, torch.zeros(()))
        tokens = torch.where(is_random, drawn, after_NF[:, :TOKENS])
        x_NF = torch.cat([tokens, after_NF[:, TOKENS:]], dim=1)
    torch.testing.assert_close(distribution.log_prob(choices), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(distribution.values(choices), x_NF[:, :TOKENS])


@pytest.mark.parametrize("kind", [FlowSDE, FlowNoise])
def test_unseen_numbers_cannot_be_cloned(kind):
    values = torch.zeros(2, TOKENS)
    with pytest.raises(ConfigError, match="2 numbers besides the 3 of a chunk"):
        with_unseen(kind, 2).imitation_loss(values, generator=torch.Generator())
