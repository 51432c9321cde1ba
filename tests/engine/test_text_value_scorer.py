"""Values of texts: read from the state that predicts each token, packed or alone, and learnable."""

import pytest
import torch
from tiny_text import text_rows, tiny_model
from tiny_training import largest_difference, make_engine, weights

from siirl.engine.critic.critic import Critic
from siirl.engine.critic.value_model import ValueModel
from siirl.engine.critic.value_scorers import every_own_token, text_value_scorer, without_head

KINDS = ("tied", "separate", "biased head")


def value_model(kind="tied"):
    """A value model whose head is not at 0."""
    trunk = without_head(tiny_model(kind))
    model = ValueModel(trunk=trunk, feature_size=trunk.config.hidden_size, normalize_returns=True)
    torch.nn.init.normal_(model.value_head.weight, generator=torch.Generator().manual_seed(0))
    return model


def text_critic(kind="tied"):
    model = value_model(kind)
    engine = make_engine(module=model, scorer=text_value_scorer, temperature=1.0)
    return Critic(
        engine=engine,
        model=model,
        decisions=every_own_token,
        epochs=10,
        rows_per_mini_batch=100,
        clip_range=None,
        seed=0,
    )


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_value_is_that_of_the_hidden_state_before_its_token(kind):
    model, batch = value_model(kind), text_rows()
    values_BT = text_value_scorer(model, batch, 1.0)
    first = batch["input_ids"].shape[1] - batch["responses"].shape[1]
    for row in range(len(batch)):
        present_S = batch["attention_mask"][row].bool()
        ids_1S = batch["input_ids"][row][present_S][None]
        alone_S = model.value_head(model.trunk(ids_1S, torch.arange(ids_1S.shape[1])[None]))[
            0, :, 0
        ]
        place_S = present_S.long().cumsum(0) - 1
        for token in range(batch["responses"].shape[1]):
            own = bool(batch["response_mask"][row, token])
            expected = float(alone_S[place_S[first + token] - 1]) if own else 0.0
            assert float(values_BT[row, token]) == pytest.approx(expected, abs=1e-5)


def test_every_own_token_is_a_decision_and_a_tools_words_are_none():
    batch = text_rows()
    assert torch.equal(every_own_token(batch), batch["response_mask"].bool())


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_has_no_weight_without_a_gradient(kind):
    model, batch = value_model(kind), text_rows()
    text_value_scorer(model, batch, 1.0).sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


@pytest.mark.parametrize("kind", ["tied", "separate"])
def test_a_text_critic_learns_saves_and_resumes(kind, tmp_path):
    critic, batch = text_critic(kind), text_rows()
    batch["value_mask"] = every_own_token(batch)
    batch["returns"] = (
        5.0 + torch.arange(len(batch))[:, None].expand(batch["responses"].shape).float()
    )
    for _ in range(10):
        batch["values"] = critic.compute_values(batch).values_BT
        metrics = critic.update(batch)
    assert metrics["critic/explained_variance"] > 0.9
    critic.engine.save(tmp_path)
    other = text_critic(kind)
    other.engine.load(tmp_path)
    other.load_state_dict(critic.state_dict())
    for each in (critic, other):
        each.update(batch)
    assert largest_difference(weights(critic.engine), weights(other.engine)) == 0.0
