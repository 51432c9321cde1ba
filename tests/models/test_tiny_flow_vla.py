"""The shipped flow policy: its parts, folder, options and codes of actions."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from envs.registry import env_spec
from siirl.algos.flow_distributions import FlowEnd, FlowNoise, FlowSDE
from siirl.errors import CheckpointError, ConfigError
from siirl.models import ContinuousActions, Policy, save_policy
from siirl.models.policy_loader import build_policy
from siirl.models.tiny_checkpoint import load_tiny
from siirl.models.tiny_flow_vla import TinyFlowVLA, embed_time

SPEC = env_spec("gymnasium", id="Pendulum-v1")
DISCRETE = env_spec("gymnasium", id="CartPole-v1")


def build(*, path=None, seed=0, **options) -> TinyFlowVLA:
    policy = build_policy("tiny_flow_vla", path=path, spec=SPEC, seed=seed, options=options)
    assert isinstance(policy, TinyFlowVLA)
    return policy


def seen(policy: Policy, rows: int = 2) -> dict[str, torch.Tensor | None]:
    ids = torch.from_numpy(policy.tokenize_instruction("swing up"))
    return {
        "pixel_values": None,
        "proprioception": torch.arange(3.0 * rows).view(rows, 3),
        "instruction_ids": ids.expand(rows, -1),
    }


@pytest.mark.parametrize(
    ("noise", "kind"), [("learnt", FlowNoise), ("sde", FlowSDE), ("end", FlowEnd)]
)
def test_it_returns_the_distribution_that_it_names(noise, kind):
    policy = build(width=8, chunk_length=3, noise=noise)
    distribution = policy(**seen(policy))
    assert policy.distribution is kind
    assert type(distribution) is kind
    assert distribution.shape == (2, 3)
    choices = distribution.sample(torch.rand(2, policy.uniforms_per_chunk))
    assert distribution.log_prob(choices).shape == (2, 3)
    assert distribution.entropy().shape == (2, 3)
    assert distribution.values(choices).shape == (2, 3)


@pytest.mark.parametrize("noise", ["learnt", "sde", "end"])
def test_the_operations_of_a_scored_choice_are_those_that_torch_counts(noise):
    policy = build(width=8, steps=3, noise=noise)
    observation = seen(policy, rows=1)
    choices = policy(**observation).mode()
    with FlopCounterMode(display=False) as counter:
        policy(**observation).log_prob(choices)
    assert policy.observation_flops(observation["instruction_ids"]) == counter.get_total_flops()


def test_new_learnt_deviations_are_the_geometric_mean_of_their_bounds():
    policy = build(width=8)
    std = policy(**seen(policy)).log_std.exp()
    torch.testing.assert_close(std, torch.full_like(std, 0.2))


def test_learnt_deviations_stay_within_their_bounds():
    policy = build(width=8)
    torch.nn.init.normal_(policy.deviation.weight, std=100.0)
    std = policy(**seen(policy)).log_std.exp().detach()
    assert float(std.min()) >= 0.1 - 1e-6
    assert float(std.max()) <= 0.4 + 1e-6


def test_learnt_deviations_are_bounded_as_reinflow_bounds_its_own():
    """There the network's output u is a log-variance, log s^2 = a + (b - a) (tanh(u) + 1) / 2 with
    the bounds' a and b (ReinFlow/ReinFlow at 4fdf051, `model/flow/mlp_flow.py`,
    `ExploreNoiseNet.process_noise`).
    """
    policy = build(width=8, noise="learnt", steps=3, noise_std=[0.05, 0.3])
    torch.nn.init.normal_(policy.deviation.weight)
    observation = seen(policy)
    std = policy(**observation).log_std.exp()
    assert len(std.unique()) == std.numel()
    a, b = (math.log(bound**2) for bound in (0.05, 0.3))
    features = policy.features(**observation)
    for step in range(3):
        time = embed_time(torch.full((2,), step / 3))
        u = policy.deviation(torch.cat([features, time], dim=-1))
        expected = (0.5 * (a + (b - a) * (torch.tanh(u) + 1) / 2)).exp()
        torch.testing.assert_close(std[:, step], expected, rtol=1e-5, atol=1e-6)


def test_a_saved_policy_samples_as_before(tmp_path):
    policy = build(width=8, steps=3)
    save_policy(policy, tmp_path)
    again = load_tiny(tmp_path, TinyFlowVLA)
    numbers = torch.rand(2, policy.uniforms_per_chunk)
    torch.testing.assert_close(
        again(**seen(again)).sample(numbers), policy(**seen(policy)).sample(numbers)
    )


def test_sampling_options_apply_to_stored_weights(tmp_path):
    save_policy(build(width=8), tmp_path)
    policy = build(path=str(tmp_path), noise="sde", steps=7, noise_level=0.3)
    policy.check_options(SPEC, options={"noise": "sde", "steps": 7}, path=str(tmp_path))
    distribution = policy(**seen(policy))
    assert isinstance(distribution, FlowSDE)
    assert (distribution.steps, distribution.noise) == (7, 0.3)


@pytest.mark.parametrize("noise", ["learnt", "end"])
def test_a_learnt_deviation_is_refused_for_weights_without_it(tmp_path, noise):
    save_policy(build(width=8, noise="sde"), tmp_path)
    with pytest.raises(ValueError, match=f"noise='{noise}' needs weights that were made with a"):
        build(path=str(tmp_path), noise=noise)


def test_another_width_than_that_of_the_weights_is_refused(tmp_path):
    save_policy(build(width=8), tmp_path)
    policy = build(path=str(tmp_path))
    with pytest.raises(CheckpointError, match="width=16"):
        policy.check_options(SPEC, options={"width": 16}, path=str(tmp_path))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"noise": "white"}, "noise='white' must be 'learnt'"),
        ({"noise_level": 0.0}, "noise_level=0.0 must be a positive number"),
        ({"noise_std": [0.2, 0.1]}, "must be two positive numbers, the smaller first"),
        ({"noise_std": [0.2]}, "must be two positive numbers"),
        ({"noise_std": 0.2}, "noise_std=0.2 must be two positive numbers"),
        ({"noise_level": 0.3}, "noise_level is read with noise=sde.*leave it out"),
        ({"noise": "sde", "noise_std": [0.1, 0.2]}, "noise_std is read with noise=learnt or end"),
        ({"steps": 0}, "steps=0 must be an integer of at least 1"),
    ],
)
def test_options_without_a_meaning_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        build(**options)


def test_discrete_actions_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="choose a policy with tokens, such as model=tiny_vla"):
        build_policy("tiny_flow_vla", path=None, spec=DISCRETE, seed=0, options={})


def test_a_folder_of_the_other_tiny_policy_is_refused_with_its_name(tmp_path):
    save_policy(build(width=8), tmp_path)
    with pytest.raises(ConfigError, match="holds a tiny_flow_vla: choose model=tiny_flow_vla"):
        build_policy("tiny_vla", path=str(tmp_path), spec=SPEC, seed=0, options={})


def test_the_critic_needs_no_head():
    policy = build(width=8)
    expected = policy.features(**seen(policy))
    policy.drop_head()
    assert not any(name.startswith(("velocity", "deviation")) for name in policy.state_dict())
    torch.testing.assert_close(policy.features(**seen(policy)), expected)


def test_times_at_both_ends_have_different_embeddings():
    assert not torch.allclose(embed_time(torch.tensor(0.0)), embed_time(torch.tensor(1.0)))


def test_continuous_actions_are_decoded_to_what_was_encoded():
    coding = ContinuousActions.for_space(
        gymnasium.spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)
    )
    actions = np.array([[-2.0, 0.25], [1.0, 1.0]])
    np.testing.assert_allclose(coding.encode(actions), [-1.0, -0.5, 0.5, 1.0])
    np.testing.assert_allclose(coding.decode(coding.encode(actions)), actions)


def test_numbers_beyond_the_range_are_decoded_to_its_ends():
    coding = ContinuousActions(low=(-2.0,), high=(2.0,))
    assert coding.decode(np.array([-7.0, 3.0], np.float32)).tolist() == [[-2.0], [2.0]]
