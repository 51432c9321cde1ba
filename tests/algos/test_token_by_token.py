"""Tokens that depend on those before them, against a chain whose probabilities are known."""

import math

import pytest
import torch

from siirl.algos.token_by_token import TokenByToken

FIRST = torch.tensor([0.5, 0.3, 0.2])
AFTER = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])  # row: the token before


class Chain:
    """Token probabilities that depend on the token before, times a weight of the observation."""

    def __init__(self):
        self.weight = torch.ones(1, requires_grad=True)
        self.asked = []

    def logits(self, context, tokens_NT):
        self.asked.append("all")
        first = FIRST.log().expand(len(tokens_NT), 1, -1)
        return self.weight * torch.cat([first, AFTER.log()[tokens_NT[:, :-1]]], dim=1)

    def generation(self, context):
        def following(token_N):
            self.asked.append("next")
            if token_N is None:
                return self.weight * FIRST.log().expand(len(context), -1)
            return self.weight * AFTER.log()[token_N]

        return following


def chunks(network=None, *, rows=1, tokens=2) -> TokenByToken:
    network = network or Chain()
    return TokenByToken(network.logits, network.generation, torch.zeros(rows, 4), tokens=tokens)


def test_a_token_has_the_probability_given_the_one_before():
    found = chunks().log_prob(torch.tensor([[1, 2]]))[0]
    assert found.exp().tolist() == pytest.approx([0.3, 0.8])


def test_samples_invert_each_tokens_own_cumulative_distribution():
    choices, log_probs = chunks(rows=2).act(torch.tensor([[0.6, 0.15], [0.95, 0.65]]))
    assert choices.tolist() == [[1, 1], [2, 2]]
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[0.3, 0.1], [0.2, 0.4]]))
    assert torch.equal(chunks(rows=2).log_prob(choices), log_probs)


def test_the_mode_is_the_greedy_chain():
    choices, log_probs = chunks(tokens=3).act(None)
    assert choices.tolist() == [[0, 0, 0]]
    assert log_probs.exp()[0].tolist() == pytest.approx([0.5, 0.7, 0.7])


def test_generation_takes_a_pass_for_each_token_and_scoring_one_in_all():
    network = Chain()
    choices, _ = chunks(network, tokens=5).act(None)
    assert network.asked == ["next"] * 5
    chunks(network, tokens=5).scores(choices)
    assert network.asked == ["next"] * 5 + ["all"]


def test_the_temperature_is_that_of_each_token():
    tokens = torch.tensor([[1, 2]])
    found = chunks().tempered(2.0).tempered(0.5).log_prob(tokens)
    torch.testing.assert_close(found, chunks().log_prob(tokens))
    hot = chunks().tempered(2.0).log_prob(tokens).detach().exp()[0]
    roots = AFTER[1].sqrt()
    assert float(hot[1]) == pytest.approx(float(roots[2] / roots.sum()))


def test_the_entropy_of_a_score_is_given_the_chosen_tokens():
    found = chunks().scores(torch.tensor([[1, 0]])).entropy_BT[0]
    expected = [-(part * part.log()).sum().item() for part in (FIRST, AFTER[1])]
    assert found.tolist() == pytest.approx(expected)
    greedy = -(AFTER[0] * AFTER[0].log()).sum().item()
    assert chunks().entropy()[0, 1].item() == pytest.approx(greedy)


def test_cloning_is_cross_entropy_of_the_demonstrated_chain():
    loss = chunks().imitation_loss(torch.tensor([[1, 2]]), generator=torch.Generator())
    assert float(loss) == pytest.approx(-(math.log(0.3) + math.log(0.8)) / 2)


def test_a_score_has_a_gradient_and_a_generation_none():
    network = Chain()
    _, log_probs = chunks(network).act(None)
    assert not log_probs.requires_grad
    chunks(network).scores(torch.tensor([[0, 1]])).log_probs_BT.sum().backward()
    assert float(network.weight.grad) != 0
