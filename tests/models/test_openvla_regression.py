"""OpenVLA-OFT's regression head: numbers of the published computation, with a learnt deviation."""

import math

import numpy as np
import pytest
import torch

from siirl.algos.distributions import Gaussian
from siirl.errors import CheckpointError, ConfigError
from siirl.models import save_policy
from siirl.models.openvla_checkpoint import ACTION_STD
from siirl.models.openvla_oft import OpenVLARegression
from siirl.models.policy_loader import build_policy
from siirl.params.model_args import LoraArguments
from siirl.preflight.check_embodied import check_actions
from tests.models.test_openvla_oft import observed, spec_of
from tests.models.tiny_openvla import WIDTH, know_tiny_encoders, write_checkpoint

HEAD_FILE = "action_head--50_checkpoint.pt"


@pytest.fixture(autouse=True)
def tiny_encoders(monkeypatch):
    know_tiny_encoders(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "checkpoint", state=True, head=True)


def policy_of(folder, **options):
    options = {"images": 2, "recompute": False, **options}
    return build_policy("openvla_oft", path=str(folder), spec=spec_of(), seed=0, options=options)


def published_head(folder, hidden_TD):
    """`L1RegressionActionHead.predict_action` written with plain products, from the file."""
    weights = torch.load(folder / HEAD_FILE, weights_only=True)

    def part(name):
        return weights[f"module.model.{name}.weight"], weights[f"module.model.{name}.bias"]

    def norm(name, values):
        scale, shift = part(name)
        centred = values - values.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * scale + shift

    def linear(name, values):
        matrix, bias = part(name)
        return values @ matrix.T + bias

    hidden = linear("fc1", norm("layer_norm1", hidden_TD.reshape(8, 7 * WIDTH))).clamp(min=0)
    for number in range(2):
        block = f"mlp_resnet_blocks.{number}.ffn"
        hidden = linear(f"{block}.1", norm(f"{block}.0", hidden)).clamp(min=0) + hidden
    return linear("fc2", norm("layer_norm2", hidden))


def test_the_mean_is_that_of_the_published_head(folder):
    policy = policy_of(folder)
    assert isinstance(policy, OpenVLARegression)
    rows = observed(policy, "open drawer", "pick up the black bowl")
    hidden_NTD = policy.hidden(*rows.values())  # compared in test_openvla_oft
    distribution = policy(**rows)
    assert isinstance(distribution, Gaussian) and policy.distribution is Gaussian
    assert distribution.shape == (2, 56)
    for number in range(2):
        expected = published_head(folder, hidden_NTD[number])
        found = distribution.mode()[number].view(8, 7)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert float(distribution.mode().detach().std()) > 0.1


def test_numbers_are_the_published_actions(folder):
    """`_unnormalize_actions`, and the gripper of the published evaluation."""
    coding = policy_of(folder).action_tokenizer
    numbers = np.random.default_rng(0).uniform(-1, 1, (8, 7))
    numbers[:, -1] = [0.9, 0.1] * 4
    actions = coding.decode(numbers.reshape(-1))
    np.testing.assert_allclose(actions[:, :6], 0.9 * numbers[:, :6], atol=1e-6)
    assert actions[:, -1].tolist() == [-1.0, 1.0] * 4
    again = coding.encode(actions).reshape(8, 7)
    np.testing.assert_allclose(again[:, :6], numbers[:, :6], atol=1e-6)
    assert again[:, -1].tolist() == [1.0, 0.0] * 4
    check_actions(coding, spec_of(), place="here")


def test_the_deviation_is_of_each_dimension_and_is_learnt(folder):
    policy = policy_of(folder, action_std=0.2)
    distribution = policy(**observed(policy, "open drawer"))
    assert policy.log_std.tolist() == pytest.approx([math.log(0.2)] * 7)
    sampled = distribution.sample(torch.full((1, 56), 0.8413447))  # one deviation above the mean
    torch.testing.assert_close(sampled - distribution.mode(), torch.full((1, 56), 0.2))
    distribution.log_prob(sampled.detach()).sum().backward()
    # d log N / d log s = z^2 - 1 = 0 at one deviation, of the mean 1 / s
    torch.testing.assert_close(policy.log_std.grad, torch.zeros(7), rtol=0, atol=1e-3)
    trained = {name for name, weight in policy.named_parameters() if weight.requires_grad}
    with_gradient = {name for name, weight in policy.named_parameters() if weight.grad is not None}
    assert (
        trained
        == with_gradient
        == {n for n, _ in policy.named_parameters()} - {"language_model.lm_head.weight"}
    )
    assert policy_of(folder).log_std[0].exp().item() == pytest.approx(ACTION_STD)


def test_what_a_run_exports_is_read_with_its_own_deviation(folder, tmp_path):
    policy = policy_of(folder)
    with torch.no_grad():
        policy.log_std.copy_(torch.arange(7.0))
    save_policy(policy, tmp_path / "exported")
    again = policy_of(tmp_path / "exported", action_std=0.3)
    assert again.log_std.tolist() == list(range(7))
    rows = observed(policy, "open drawer")
    assert torch.equal(policy(**rows).mode(), again(**rows).mode())


def test_features_need_no_head(folder):
    policy = policy_of(folder)
    rows = observed(policy, "open drawer")
    features = policy.features(**rows)
    policy.drop_head()
    assert torch.equal(policy.features(**rows), features)
    assert not any("action_head" in name for name, _ in policy.named_parameters())


def test_adapters_are_in_the_head_too(folder):
    policy = policy_of(folder)
    policy.adapt(LoraArguments(rank=2), seed=0)
    assert "action_head.model.mlp_resnet_blocks.1.ffn.1" in policy.adapted
    assert not policy.log_std.requires_grad


def test_a_deviation_without_a_head_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"action_std=0\.1 is read for a regression head"):
        policy_of(write_checkpoint(tmp_path), action_std=0.1)


def test_an_invalid_deviation_is_refused(folder):
    with pytest.raises(ValueError, match="action_std=0 must be a positive number"):
        policy_of(folder, action_std=0)


def test_another_head_is_refused(folder):
    torch.save({"module.noise_predictor.fc1.bias": torch.zeros(3)}, folder / HEAD_FILE)
    with pytest.raises(CheckpointError, match=r"head with noise_predictor\.fc1\.bias: it is no"):
        policy_of(folder)


def test_a_head_of_another_size_is_named(folder):
    weights = torch.load(folder / HEAD_FILE, weights_only=True)
    weights["module.model.fc2.bias"] = torch.zeros(8)
    torch.save(weights, folder / HEAD_FILE)
    with pytest.raises(CheckpointError, match=r"action_head\.model\.fc2\.bias is \(8,\), expected"):
        policy_of(folder)


def test_encoders_with_film_are_refused(folder):
    (folder / "vision_backbone--50_checkpoint.pt").touch()
    with pytest.raises(CheckpointError, match="FiLM"):
        policy_of(folder)
