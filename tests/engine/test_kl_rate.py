"""The learning rate follows the measured KL to its target, in the schedule's proportion."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import make_actor, make_engine, trajectories

from siirl.engine.actor.actor import LARGEST_RATE_FACTOR, RATE_STEP, next_rate_factor
from siirl.params import OptimizerArguments


def test_the_rate_rises_below_half_the_target_kl_and_falls_above_twice_it():
    assert next_rate_factor(1.0, kl=0.004, target=0.01) == 1.5
    assert next_rate_factor(1.0, kl=0.03, target=0.01) == pytest.approx(1 / 1.5)
    assert next_rate_factor(2.0, kl=0.006, target=0.01) == 2.0


@given(
    factor=st.floats(1 / LARGEST_RATE_FACTOR, LARGEST_RATE_FACTOR),
    kl=st.floats(-1.0, 1e6),
    target=st.floats(0.0, 10.0),
)
def test_the_factor_stays_within_its_bounds(factor, kl, target):
    assert (
        1 / LARGEST_RATE_FACTOR
        <= next_rate_factor(factor, kl=kl, target=target)
        <= LARGEST_RATE_FACTOR
    )


def engine_at(rate):
    optim = OptimizerArguments(lr=rate, scheduler="constant_with_warmup", warmup_ratio=0.0)
    return make_engine(optim=optim)


@pytest.mark.parametrize("rate", [1e-4, 0.02])
def test_updates_come_within_twice_the_target_from_a_rate_that_is_too_low_or_too_high(rate):
    """Each update learns from rows that the current weights acted on."""
    engine = engine_at(rate)
    actor = make_actor(engine, target_kl=0.003, ppo_epochs=4)
    measured = []
    for _ in range(25):
        batch = trajectories(6)
        batch["old_log_probs"] = actor.compute_log_prob(batch).log_probs_BT
        batch["advantages"] = torch.tensor([1.0, -1.0] * 3)[:, None].expand(6, 12).clone()
        measured.append(actor.update(batch)["actor/approx_kl"])
    assert not 0.0015 < measured[0] < 0.006
    assert engine.learning_rate() != rate
    assert 0.0005 < sum(measured[-6:]) / 6 < 0.012


def test_an_update_that_made_its_actions_far_more_likely_lowers_the_rate():
    """The mean of `-log ratio` is negative then."""
    engine = engine_at(0.02)
    batch = trajectories(6)
    batch["old_log_probs"] = make_actor(engine).compute_log_prob(batch).log_probs_BT
    batch["advantages"].fill_(1.0)
    metrics = make_actor(engine, target_kl=0.003, ppo_epochs=8).update(batch)
    assert metrics["actor/ppo_kl"] < -0.006 < 0.006 < metrics["actor/approx_kl"]
    assert engine.rate_factor < 1.0


@pytest.mark.parametrize("loss", ["vanilla", "gpg"])
def test_the_rate_follows_the_kl_of_any_loss_with_a_ratio_or_without(loss):
    engine = engine_at(1e-5)
    batch = trajectories(6)
    batch["old_log_probs"] = make_actor(engine).compute_log_prob(batch).log_probs_BT
    metrics = make_actor(engine, target_kl=0.01, ppo_epochs=4, loss=loss).update(batch)
    assert 0 < metrics["actor/approx_kl"] < 0.005
    assert engine.rate_factor == RATE_STEP


def test_without_a_target_the_rate_is_the_schedules():
    engine = engine_at(0.01)
    make_actor(engine).update(trajectories(4))
    assert engine.learning_rate() == 0.01


def test_an_update_without_change_keeps_the_learning_rate():
    engine = engine_at(0.01)
    batch = trajectories(4)
    batch["advantages"].zero_()
    make_actor(engine, target_kl=0.01).update(batch)
    assert engine.rate_factor == 1.0


def test_a_checkpoint_keeps_the_factor_and_an_older_one_has_none():
    one, other = (make_actor(engine_at(0.01)) for _ in range(2))
    one.engine.rate_factor = 3.0
    other.load_state_dict(one.state_dict())
    assert other.engine.rate_factor == 3.0
    other.load_state_dict({"generator": one.generator.get_state()})
    assert other.engine.rate_factor == 1.0
