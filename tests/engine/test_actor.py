"""PPO's update on one rank: old log-probs, loss terms, epochs, mini-batches, refusals, learning."""

import pytest
import torch
from tiny_training import largest_difference, make_actor, make_engine, trajectories, weights

from siirl.algos.aggregation import AGGREGATIONS
from siirl.algos.policy_losses import LOSS_TRAITS, POLICY_LOSSES
from siirl.compat.core_algos import agg_loss
from siirl.compat.loss_registration import POLICY_LOSS_REGISTRY, register_policy_loss
from siirl.errors import ConfigError, TensorError, UnknownNameError
from siirl.reporting.metrics import declaration


def updated(batch, *, engine=None, **config):
    """Engine and metrics after one update."""
    engine = engine or make_engine()
    return engine, make_actor(engine, **config).update(batch)


def test_ratios_to_the_current_weights_are_one():
    batch, engine = trajectories(5), make_engine()
    batch["old_log_probs"] = make_actor(engine).compute_log_prob(batch).log_probs_BT
    _, metrics = updated(batch, engine=engine)
    assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["actor/ratio_max"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["actor/pg_clipfrac"] == 0.0


def test_rollout_log_probs_stand_in_for_old_ones():
    batch = trajectories(5)
    expected = batch.clone()
    expected["old_log_probs"] = batch["rollout_log_probs"]
    one, other = updated(expected)[0], updated(batch.exclude("old_log_probs"))[0]
    assert largest_difference(one.gradients[0], other.gradients[0]) == 0.0


def test_missing_old_log_probs_are_refused():
    with pytest.raises(ConfigError, match="needs old_log_probs or rollout_log_probs"):
        updated(trajectories(3).exclude("old_log_probs", "rollout_log_probs"))


def test_a_kl_without_its_column_is_refused():
    with pytest.raises(
        ConfigError, match=r"needs the column 'ref_log_prob'; the batch has: .*responses"
    ):
        updated(trajectories(3).exclude("ref_log_prob"), use_kl_loss=True)


def test_log_probs_and_entropy_of_masked_tokens_are_zero():
    batch = trajectories(5, masked_rows=(2,))
    scores = make_actor(make_engine()).compute_log_prob(batch)
    masked = batch["response_mask"] == 0
    assert bool((scores.log_probs_BT[masked] == 0).all())
    assert bool((scores.log_probs_BT[~masked] < 0).all())
    assert bool((scores.entropy_BT[~masked] > 0).all())


def test_loss_is_the_sum_of_its_terms():
    _, metrics = updated(
        trajectories(6),
        entropy_coef=0.5,
        use_kl_loss=True,
        kl_loss_coef=0.25,
        loss_agg_mode="token-mean",
    )
    terms = (
        metrics["actor/pg_loss"] - 0.5 * metrics["actor/entropy"] + 0.25 * metrics["actor/kl_loss"]
    )
    assert metrics["actor/loss"] == pytest.approx(terms, rel=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_fully_masked_row_changes_nothing(aggregation):
    batch = trajectories(5, masked_rows=(3,))
    kept = torch.tensor([0, 1, 2, 4])
    one, other = (
        updated(batch, loss_agg_mode=aggregation)[0],
        updated(batch[kept], loss_agg_mode=aggregation)[0],
    )
    assert largest_difference(one.gradients[0], other.gradients[0]) < 1e-6


@pytest.mark.parametrize(
    "loss", [name for name, traits in LOSS_TRAITS.items() if traits.times_advantage]
)
@pytest.mark.parametrize("silent", [(1, 4), (0, 1, 2, 3, 4)])
def test_rows_without_advantage_are_left_out_of_the_passes_and_not_of_the_denominator(loss, silent):
    batch = trajectories(6)
    batch["advantages"][list(silent)] = 0.0
    left_out, scored = (
        updated(batch, loss=loss)[0],
        updated(batch, loss=loss, entropy_coef=1e-30)[0],
    )
    for name, gradient in scored.gradients[0].items():
        torch.testing.assert_close(left_out.gradients[0][name], gradient, rtol=1e-5, atol=1e-7)
    assert left_out.rows_seen == 6 - len(silent) < scored.rows_seen == 6


@pytest.mark.parametrize("loss", ["cpgd", "kl_cov", "towards_old"])
def test_a_loss_with_a_gradient_without_advantages_takes_its_step(registries, loss):
    @register_policy_loss("towards_old")
    def compute_distance(old_log_prob, log_prob, response_mask, loss_agg_mode):
        zero = torch.zeros(())
        distance = (log_prob - old_log_prob) ** 2
        return agg_loss(distance, response_mask, loss_agg_mode), zero, zero, zero

    batch = trajectories(6)
    batch["advantages"].zero_()
    _, metrics = updated(batch, loss=loss)
    assert metrics["actor/grad_norm"] > 0.0


def test_gspo_trains():
    _, metrics = updated(trajectories(6), loss="gspo", loss_agg_mode="seq-mean-token-mean")
    assert metrics["actor/updates"] == 1.0
    assert metrics["actor/grad_norm"] > 0.0


def test_good_tokens_become_likelier_and_bad_ones_rarer():
    batch, engine = trajectories(6), make_engine()
    actor = make_actor(engine)
    batch["advantages"] = (
        torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])[:, None].expand(6, 12).clone()
    )
    before = actor.compute_log_prob(batch).log_probs_BT
    for _ in range(20):
        batch["old_log_probs"] = actor.compute_log_prob(batch).log_probs_BT
        actor.update(batch)
    gain = (actor.compute_log_prob(batch).log_probs_BT - before) * batch["advantages"]
    assert float(gain.sum()) > 1.0


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_an_entropy_bonus_raises_entropy_and_a_cost_lowers_it(direction):
    batch, engine = trajectories(6), make_engine()
    batch["advantages"].zero_()
    actor = make_actor(engine, entropy_coef=direction)
    entropies = [actor.update(batch)["actor/entropy"] for _ in range(10)]
    assert direction * (entropies[-1] - entropies[0]) > 0.01


def test_epochs_and_mini_batches_are_optimiser_steps():
    engine, metrics = updated(trajectories(10), ppo_epochs=3, ppo_mini_batch_size=5)
    assert (metrics["actor/updates"], engine.steps) == (6.0, 6)


def test_without_any_advantage_no_weight_moves_not_even_by_momentum_or_decay():
    engine = make_engine()
    actor = make_actor(engine)
    actor.update(trajectories(4))
    before, batch = weights(engine), trajectories(4)
    batch["advantages"].zero_()
    metrics = actor.update(batch)
    assert (metrics["actor/updates"], metrics["actor/skipped_updates"]) == (0.0, 0.0)
    assert largest_difference(before, weights(engine)) == 0.0


def test_no_rows_make_no_optimiser_step():
    _, metrics = updated(trajectories(4)[:0])
    assert metrics["actor/updates"] == 0.0


def test_a_nan_advantage_is_refused_with_its_row():
    batch = trajectories(4)
    batch["advantages"][2, 0] = torch.nan
    with pytest.raises(TensorError, match="advantages is nan in row 2"):
        updated(batch)


def test_the_log_prob_gap_is_that_of_rows_of_this_version():
    batch, actor = trajectories(4).exclude("old_log_probs"), make_actor(make_engine())
    batch["rollout_log_probs"] = actor.compute_log_prob(batch).log_probs_BT
    batch["rollout_log_probs"][0, 0] += 0.01
    batch["rollout_log_probs"][1, 0] += 0.5
    batch["policy_version"] = torch.tensor([3, 2, 3, 3])
    metrics = actor.update(batch, policy_version=3)
    assert metrics["rollout/log_prob_gap"] == pytest.approx(0.01, rel=1e-3)
    # of the 2, 12 and 6 tokens of the other rows
    assert metrics["rollout/log_prob_gap_mean"] == pytest.approx(0.01 / 20, rel=1e-3)


def test_without_rows_of_this_version_there_is_no_mean_gap():
    batch, actor = trajectories(4), make_actor(make_engine())
    assert not any("log_prob_gap" in name for name in actor.update(batch, policy_version=7))


def test_every_metric_is_declared():
    _, metrics = updated(trajectories(4), entropy_coef=0.1, use_kl_loss=True)
    for name in metrics:
        declaration(name)


def test_mini_batches_continue_where_a_checkpoint_left_them():
    one, other = (make_actor(make_engine(), ppo_mini_batch_size=2, seed=seed) for seed in (1, 2))
    one.update(trajectories(8))
    other.load_state_dict(one.state_dict())
    assert torch.equal(
        torch.randperm(9, generator=one.generator), torch.randperm(9, generator=other.generator)
    )


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"loss": "vanila"}, UnknownNameError, r"actor_rollout_ref.actor.loss\) 'vanila'"),
        ({"loss_agg_mode": "token_mean"}, UnknownNameError, "loss_agg_mode 'token_mean'"),
        ({"use_kl_loss": True, "kl_loss_type": "k4"}, UnknownNameError, r"kl_loss_type\) 'k4'"),
        ({"clip_ratio_low": 2.0}, ConfigError, "clip_ratio_low=2.0"),
    ],
)
def test_invalid_settings_are_refused_when_the_actor_is_made(config, error, message):
    with pytest.raises(error, match=message):
        make_actor(make_engine(), **config)


def test_a_mode_that_needs_the_longest_response_is_refused_without_it():
    with pytest.raises(ConfigError, match="pass `horizon` to the Actor"):
        make_actor(make_engine(), horizon=None, loss_agg_mode="seq-mean-token-sum-norm")


@pytest.fixture
def registries():
    before = [
        (registry, dict(registry))
        for registry in (POLICY_LOSSES, POLICY_LOSS_REGISTRY, LOSS_TRAITS)
    ]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_users_loss_of_the_documents_form_has_the_gradient_of_our_own_however_cut(
    registries, aggregation
):
    @register_policy_loss("unclipped")
    def compute_unclipped_loss(
        old_log_prob,
        log_prob,
        advantages,
        response_mask,
        loss_agg_mode="token-mean",
        config=None,
        rollout_is_weights=None,
    ):
        loss = -advantages * torch.exp((log_prob - old_log_prob) * response_mask)
        zero = torch.zeros(())
        return agg_loss(loss, response_mask, loss_agg_mode), zero, zero, zero

    wide = {"loss": "vanilla", "clip_ratio_low": 1.0, "clip_ratio_high": 1e9, "clip_ratio_c": 1e9}
    expected, _ = updated(trajectories(7, masked_rows=(2,)), loss_agg_mode=aggregation, **wide)
    for rows in (1, 4):
        engine = make_engine(micro_batch_size=rows)
        updated(
            trajectories(7, masked_rows=(2,)),
            engine=engine,
            loss="unclipped",
            loss_agg_mode=aggregation,
        )
        assert largest_difference(expected.gradients[0], engine.gradients[0]) < 1e-5


def test_a_users_loss_that_writes_into_its_arguments_changes_no_later_epoch(registries):
    @register_policy_loss("writing")
    def compute_writing_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode):
        loss = -advantages.mul_(2) * torch.exp((log_prob - old_log_prob) * response_mask)
        zero = torch.zeros(())
        return agg_loss(loss, response_mask, loss_agg_mode), zero, zero, zero

    batch = trajectories(5)
    before = batch["advantages"].clone()
    updated(batch, loss="writing", ppo_epochs=2)
    assert torch.equal(batch["advantages"], before)
