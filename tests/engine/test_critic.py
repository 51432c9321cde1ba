"""The critic on one rank: initial values, learning, decision tokens, refusals."""

import pytest
import torch
from tensordict import TensorDict
from tiny_critic import experience, make_critic
from tiny_training import TOKENS, largest_difference, trajectories, weights

from siirl.engine.critic.value_model import PolicyFeatures, ValueModel
from siirl.engine.critic.value_scorers import first_token_of_each_chunk
from siirl.engine.training.collectives import OneProcess
from siirl.errors import ConfigError, TensorError
from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.tiny_vla import TinyVLA, TinyVLAConfig
from siirl.reporting.metrics import declaration


def value_model(**options):
    return ValueModel(
        trunk=torch.nn.Identity(), feature_size=3, **{"normalize_returns": True, **options}
    )


# The value model


def test_every_value_starts_at_zero():
    assert value_model()(torch.randn(4, 3)).tolist() == [0.0] * 4


def test_the_first_returns_move_every_value_to_their_mean():
    model = value_model()
    model.observe_returns(
        torch.tensor([[2.0, 4.0], [9.0, 99.0]]),
        torch.tensor([[True, True], [True, False]]),
        ranks=OneProcess(),
    )
    assert model(torch.randn(4, 3)).tolist() == pytest.approx([5.0] * 4)
    assert float(model.std) == pytest.approx(((9 + 1 + 16) / 3) ** 0.5)


def test_later_returns_move_the_statistics_and_no_value():
    model = value_model()
    torch.nn.init.normal_(model.value_head.weight)
    model.observe_returns(
        torch.tensor([[2.0, 4.0]]), torch.ones(1, 2, dtype=torch.bool), ranks=OneProcess()
    )
    features, mean = torch.randn(5, 3), float(model.mean)
    before = model(features)
    model.observe_returns(
        torch.tensor([[70.0, 110.0]]), torch.ones(1, 2, dtype=torch.bool), ranks=OneProcess()
    )
    assert float(model.mean) > mean + 10
    torch.testing.assert_close(model(features), before)


def test_equal_returns_leave_a_deviation_that_can_be_divided_by():
    model = value_model()
    model.observe_returns(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool), ranks=OneProcess())
    assert float(model.std) == pytest.approx(0.01)


def test_an_update_without_returns_changes_no_statistics():
    model = value_model()
    model.observe_returns(
        torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.bool), ranks=OneProcess()
    )
    assert not model.has_seen_returns


def test_without_normalisation_the_statistics_stay():
    model = value_model(normalize_returns=False)
    model.observe_returns(
        torch.tensor([[70.0]]), torch.ones(1, 1, dtype=torch.bool), ranks=OneProcess()
    )
    assert (float(model.mean), float(model.std)) == (0.0, 1.0)


def tiny_vla():
    tokenizer = ActionTokenizer(bins=4, low=(-1.0,), high=(1.0,))
    return TinyVLA(
        TinyVLAConfig(action_tokenizer=tokenizer, chunk_length=2, proprioception_size=2, width=8)
    )


def test_a_critic_drops_the_policys_head_and_keeps_its_features():
    policy = tiny_vla()
    observation = {
        "pixel_values": None,
        "proprioception": torch.randn(3, 2),
        "instruction_ids": torch.zeros(3, 4, dtype=torch.long),
    }
    features = policy.features(**observation)
    trunk = PolicyFeatures(policy)
    torch.testing.assert_close(trunk(**observation), features)
    assert trunk.feature_size == features.shape[1] == 16
    assert not [name for name in trunk.state_dict() if "head" in name]


def test_a_policy_without_features_is_refused():
    policy = tiny_vla()
    policy.feature_size = None
    with pytest.raises(ConfigError, match="TinyVLA has no features for a critic"):
        PolicyFeatures(policy)


# Decisions


def test_the_first_executed_token_of_each_chunk_represents_it():
    batch = trajectories(2)  # two tokens of the first chunk; seven: two chunks and a token
    starts_BT = first_token_of_each_chunk(batch)
    assert [row.nonzero().flatten().tolist() for row in starts_BT] == [[0], [0, 3, 6]]


def test_a_chunk_has_one_value_at_its_executed_tokens_and_none_elsewhere():
    critic, batch = make_critic(), experience(5, masked_rows=(2,))
    critic.update(batch)
    values = critic.compute_values(batch)
    assert not values.values_BT[batch["response_mask"] == 0].any()
    for row, places in enumerate(values.value_mask_BT):
        for place in places.nonzero().flatten().tolist():
            chunk, mask = (
                values.values_BT[row, place : place + TOKENS],
                batch["response_mask"][row, place : place + TOKENS].bool(),
            )
            assert len(set(chunk[mask].tolist())) == 1
    assert len(set(values.values_BT[values.value_mask_BT].tolist())) > 3


# The update


@pytest.mark.parametrize("scale", [0.1, 100.0])
def test_the_critic_learns_returns_of_any_size_with_one_learning_rate(scale):
    critic, batch = make_critic(epochs=20), experience(20, scale=scale)
    for _ in range(10):
        values = critic.compute_values(batch)
        batch["values"] = values.values_BT
        metrics = critic.update(batch)
    assert metrics["critic/explained_variance"] > 0.9
    assert metrics["critic/value_mean"] == pytest.approx(metrics["critic/return_mean"], rel=0.1)


def test_one_step_moves_values_hardly_beyond_the_clip_range():
    batch = experience(20)
    loose, tight = (make_critic(epochs=60, clip_range=clip_range) for clip_range in (None, 0.05))
    moved = []
    for critic in (loose, tight):
        critic.update(batch)  # first returns: values move to their mean without clipping
        batch["values"] = critic.compute_values(batch).values_BT
        metrics = critic.update(batch)
        after = critic.compute_values(batch).values_BT
        moved.append(float((after - batch["values"]).abs().max()))
    assert moved[1] < moved[0]
    assert metrics["critic/vf_clipfrac"] > 0.1


def test_a_loss_by_hand():
    critic = make_critic(normalize_returns=False, clip_range=None)
    batch = experience(2)
    batch["returns"] = torch.tensor([[2.0], [4.0]]).expand(2, batch["responses"].shape[1]).clone()
    metrics = critic.update(batch)  # values are 0; one decision of return 2, three of return 4
    assert metrics["critic/vf_loss"] == pytest.approx((2**2 / 2 + 3 * 4**2 / 2) / 4)
    assert metrics["critic/explained_variance"] == pytest.approx(0.0)
    assert metrics["critic/updates"] == 1.0


def test_tokens_of_a_chunk_beyond_its_first_do_not_count():
    one, other = make_critic(), make_critic()
    batch, changed = experience(5), experience(5)
    changed["returns"] = torch.where(changed["value_mask"], changed["returns"], 77.0)
    one.update(batch)
    other.update(changed)
    assert largest_difference(weights(one.engine), weights(other.engine)) == 0.0


def test_every_metric_is_declared():
    for name in make_critic().update(experience(3)):
        declaration(name)


def test_rows_without_a_decision_make_no_update():
    critic = make_critic()
    before = weights(critic.engine)
    metrics = critic.update(experience(2, masked_rows=(0, 1)))
    assert (metrics["critic/updates"], metrics["critic/skipped_updates"]) == (0.0, 0.0)
    assert largest_difference(before, weights(critic.engine)) == 0.0


@pytest.mark.parametrize("name", ["values", "value_mask", "returns"])
def test_a_missing_column_is_named(name):
    with pytest.raises(ConfigError, match=f"The critic's update needs the column '{name}'"):
        make_critic().update(experience(2).exclude(name))


@pytest.mark.parametrize("name", ["values", "returns"])
def test_bad_numbers_are_refused_before_the_statistics_see_them(name):
    critic, batch = make_critic(), experience(3)
    batch[name][1, 3] = torch.nan
    with pytest.raises(TensorError, match=f"{name} is nan in row 1, place \\[3\\]"):
        critic.update(batch)
    assert not critic.model.has_seen_returns


@pytest.mark.parametrize("name", ["values", "returns"])
def test_a_column_of_another_shape_than_its_mask_is_named(name):
    batch = experience(3)
    batch[name] = batch[name][:, :-1].clone()
    with pytest.raises(TensorError, match=f"{name} has shape .* and mask has shape"):
        make_critic().update(batch)


def test_a_nan_outside_of_decisions_is_ignored():
    batch = experience(3)
    batch["returns"][1, 4] = torch.nan
    assert make_critic().update(batch)["critic/updates"] == 1.0


# Resuming


def test_a_saved_critic_resumes_unchanged(tmp_path):
    def run(critic, batches):
        for batch in batches:
            critic.update(batch)
        return weights(critic.engine)

    batches: list[TensorDict] = [experience(8, seed=seed, scale=1 + seed) for seed in range(4)]
    settings = {"epochs": 2, "rows": 4}
    expected = run(make_critic(**settings), batches)
    first = make_critic(**settings)
    run(first, batches[:2])
    first.engine.save(tmp_path)
    second = make_critic(**settings)
    second.engine.load(tmp_path)
    second.load_state_dict(first.state_dict())
    assert largest_difference(expected, run(second, batches[2:])) == 0.0
