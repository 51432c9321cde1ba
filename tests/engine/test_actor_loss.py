"""The actor's loss from its configuration: resolved settings, refusals, needed columns."""

import math
from dataclasses import dataclass

import pytest
import torch
from tiny_training import largest_difference, make_actor, make_engine, trajectories

from siirl.algos.log_probs import TokenScores
from siirl.algos.policy_losses import (
    LOSS_TRAITS,
    POLICY_LOSSES,
    PolicyLoss,
    policy_loss,
)
from siirl.algos.policy_losses import register_policy_loss as register_own_loss
from siirl.compat.core_algos import agg_loss
from siirl.compat.loss_registration import POLICY_LOSS_REGISTRY, register_policy_loss
from siirl.engine.actor.actor_loss import ActorLoss, is_built_in
from siirl.errors import ConfigError, TensorError, UnknownNameError
from siirl.params import ActorArguments
from siirl.params.model_args import IMPORTANCE_BOUNDS, IMPORTANCE_LEVELS, ImportanceArguments
from siirl.params.parser import parse_config
from siirl.params.registered_names import LOSSES, LOSSES_WITH_OWN_BOUNDS
from siirl.preflight.configured_graph import weighs_tokens


def resolved(*overrides):
    return ActorLoss(parse_config(overrides).actor_rollout_ref.actor, horizon=10)


LOSS, ACTOR = "actor_rollout_ref.actor.loss", "actor_rollout_ref.actor"


def test_a_loss_has_its_own_aggregation_unless_another_is_configured():
    assert resolved(f"{LOSS}=gspo").aggregation == "seq-mean-token-mean"
    assert resolved(f"{LOSS}=gspo", f"{ACTOR}.loss_agg_mode=token-mean").aggregation == "token-mean"
    assert resolved("pipeline=grpo").aggregation == "token-mean"
    assert resolved().aggregation == "seq-mean-token-mean"  # configs/pipeline/embodied_srpo.yaml


def test_a_pipelines_bound_of_ppos_ratio_is_not_gspos_bound():
    assert (
        resolved(LOSS + "=vanilla").describe()
        == "vanilla (clip_ratio_low=0.2, clip_ratio_high=0.28), seq-mean-token-mean"
    )
    assert (
        resolved(LOSS + "=gspo").describe()
        == "gspo (clip_ratio_low=0.0003, clip_ratio_high=0.0004), seq-mean-token-mean"
    )


def test_clip_ratio_alone_bounds_the_ratio_on_both_sides():
    """Ratios 1.5 and 0.5 with advantages 1 and -1, clipped at 1.1 and 0.9: losses -1.1 and 0.9."""
    actor = resolved("pipeline=grpo", f"{ACTOR}.clip_ratio=0.1")
    assert actor.clip == {"clip_ratio_low": 0.1, "clip_ratio_high": 0.1, "clip_ratio_c": 3.0}
    columns = {
        "log_probs_BT": torch.tensor([[1.5, 0.5]]).log(),
        "old_log_probs_BT": torch.zeros(1, 2),
    }
    columns |= {
        "advantages_BT": torch.tensor([[1.0, -1.0]]),
        "mask_BT": torch.ones(1, 2, dtype=torch.bool),
    }
    loss_BT = policy_loss(name="vanilla", available={**columns, **actor.clip}).loss_BT
    assert loss_BT.tolist() == [[pytest.approx(-1.1), pytest.approx(0.9)]]


@pytest.mark.parametrize("order", [1, -1])
def test_a_given_bound_holds_wherever_it_is_in_the_command_line(order):
    overrides = [f"{LOSS}=gspo", f"{ACTOR}.clip_ratio_high=0.001"][::order]
    assert resolved(*overrides).clip == {"clip_ratio_high": 0.001}


def test_the_documents_gspo_has_gspos_bounds():
    assert (
        resolved("algorithm.adv_estimator=gspo")
        .describe()
        .startswith("gspo (clip_ratio_low=0.0003")
    )


def test_options_are_reached_from_the_command_line():
    told = resolved(
        f"{LOSS}=sapo", f"{ACTOR}.loss_options.tau_neg=1.2", f"{ACTOR}.importance.level=sequence"
    ).describe()
    assert told == "sapo (tau_neg=1.2), seq-mean-token-mean; importance weights: truncate, sequence"


def test_geo_mean_is_gmpo():
    assert resolved(f"{LOSS}=geo_mean").name == "gmpo"


def test_names_in_the_parameters_agree_with_the_registries():
    from siirl.algos.importance import BOUNDS, LEVELS

    assert set(LOSSES) == {*filter(is_built_in, POLICY_LOSSES)}
    assert {name for name in LOSSES if LOSS_TRAITS[name].own_bounds} == set(LOSSES_WITH_OWN_BOUNDS)
    assert (IMPORTANCE_LEVELS, IMPORTANCE_BOUNDS) == (LEVELS, BOUNDS)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_reachable_by_name(name):
    assert resolved(f"{LOSS}={name}").name == name


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"loss": "vanila"}, UnknownNameError, r"actor_rollout_ref.actor.loss\) 'vanila'"),
        ({"loss_agg_mode": "token_mean"}, UnknownNameError, "loss_agg_mode 'token_mean'"),
        ({"use_kl_loss": True, "kl_loss_type": "k4"}, UnknownNameError, r"kl_loss_type\) 'k4'"),
        ({"clip_ratio_low": 2.0}, ConfigError, "clip_ratio_low=2.0"),
        ({"loss": "gspo", "clip_ratio_low": 2.0}, ConfigError, "clip_ratio_low=2.0"),
        (
            {"loss": "gspo", "clip_ratio": 0.3},
            ConfigError,
            "clip_ratio=0.3 is not read by .*loss=gspo, its bounds are clip_ratio_low and",
        ),
        (
            {"loss": "sapo", "clip_ratio_high": 0.3},
            ConfigError,
            "clip_ratio_high=0.3 is not read by .*loss=sapo, it does not clip",
        ),
        (
            {"loss": "cpgd", "clip_ratio_c": 2.0},
            ConfigError,
            "clip_ratio_c=2.0 is not read by .*loss=cpgd",
        ),
        ({"loss": "sapo", "loss_options": {"tau": 1.0}}, UnknownNameError, "'tau'"),
        (
            {"loss": "decoupled", "importance": ImportanceArguments(level="token")},
            ConfigError,
            "its own importance weights",
        ),
        ({"importance": ImportanceArguments(level="tokens")}, UnknownNameError, "'tokens'"),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, ConfigError, "pass `horizon` to the Actor"),
    ],
)
def test_invalid_settings_are_refused_when_the_loss_is_made(config, error, message):
    with pytest.raises(error, match=message):
        ActorLoss(ActorArguments(**config))


@pytest.mark.parametrize(
    "config", [{"loss": "decoupled"}, {"importance": ImportanceArguments(level="token")}]
)
@pytest.mark.parametrize("column", ["old_log_probs", "rollout_log_probs"])
def test_importance_weights_need_both_policies(config, column):
    with pytest.raises(ConfigError, match="needs both columns"):
        make_actor(make_engine(), **config).update(trajectories(3).exclude(column))


def test_a_dual_clip_can_be_left_out():
    assert ActorLoss(ActorArguments(clip_ratio_c=None)).clip["clip_ratio_c"] is None


def test_a_loss_without_a_dual_clip_admits_a_preset_that_turns_it_off():
    """trainer=classic_control sets clip_ratio_c=null for every loss."""
    ActorLoss(ActorArguments(loss="cpgd", clip_ratio_c=None))


def test_weights_of_one_change_nothing():
    batch = trajectories(5)
    batch["rollout_log_probs"] = batch["old_log_probs"]
    plain, weighted = make_engine(), make_engine()
    make_actor(plain).update(batch)
    metrics = make_actor(weighted, importance=ImportanceArguments(level="sequence")).update(batch)
    assert metrics["actor/importance_weight"] == pytest.approx(1.0)
    assert largest_difference(plain.gradients[0], weighted.gradients[0]) < 1e-6


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


def test_the_properties_of_a_users_loss_stand_at_its_decorator(registries):
    @register_own_loss("plain")
    @register_own_loss("separable", times_advantage=True, token_by_token=True)
    def my_loss(*, log_probs_BT, advantages_BT):
        return PolicyLoss(loss_BT=-advantages_BT * log_probs_BT)

    plain, separable = (ActorLoss(ActorArguments(loss=name)) for name in ("plain", "separable"))
    assert (plain.advantage_only, plain.sums_tokens) == (False, False)
    assert (separable.advantage_only, separable.sums_tokens) == (True, True)


def test_a_loss_may_be_an_object_without_a_hash(registries):
    @dataclass(frozen=True)
    class Scaled:
        """Its field has no hash, so it has none."""

        options: dict

        def __call__(self, log_probs_BT, advantages_BT):
            return PolicyLoss(loss_BT=-self.options["scale"] * advantages_BT * log_probs_BT)

    register_own_loss("scaled")(Scaled({"scale": 2.0}))
    columns = {"log_probs_BT": torch.ones(1, 2), "advantages_BT": torch.ones(1, 2)}
    result = policy_loss(name="scaled", available={**columns, "mask_BT": torch.ones(1, 2) == 1})
    assert result.loss_BT.tolist() == [[-2.0, -2.0]]


def test_a_users_loss_may_weight_tokens_itself(registries):
    @register_own_loss("corrected", own_weights=True)
    def my_loss(*, log_probs_BT, old_log_probs_BT, rollout_log_probs_BT, advantages_BT):
        weights_BT = (old_log_probs_BT - rollout_log_probs_BT).exp()
        return PolicyLoss(loss_BT=-weights_BT * advantages_BT * log_probs_BT)

    assert ActorLoss(ActorArguments(loss="corrected")).needs_behaviour
    assert weighs_tokens(ActorArguments(loss="corrected"))
    with pytest.raises(ConfigError, match="loss=corrected has its own importance weights"):
        ActorLoss(ActorArguments(loss="corrected", importance=ImportanceArguments(level="token")))


def test_a_loss_of_the_documents_form_gets_importance_weights_as_an_argument(registries):
    seen = []

    @register_policy_loss("weighted")
    def compute_weighted_loss(
        log_prob, advantages, response_mask, loss_agg_mode, rollout_is_weights=None
    ):
        seen.append(rollout_is_weights)
        zero = torch.zeros(())
        return agg_loss(-advantages * log_prob, response_mask, loss_agg_mode), zero, zero, zero

    make_actor(make_engine(), loss="weighted").update(trajectories(2))
    make_actor(
        make_engine(), loss="weighted", importance=ImportanceArguments(level="token")
    ).update(trajectories(2))
    assert seen[0] is None
    assert seen[1].shape == (2, 12)


def test_a_pipelines_bound_does_not_refuse_a_users_loss_that_does_not_clip(registries):
    @register_own_loss("plain")
    def plain_loss(*, log_probs_BT, advantages_BT):
        return PolicyLoss(loss_BT=-advantages_BT * log_probs_BT)

    assert resolved("pipeline=dapo", f"{LOSS}=plain").describe() == "plain, token-mean"
    assert (
        make_actor(make_engine(), loss="plain", clip_ratio_high=0.28).update(trajectories(2))[
            "actor/updates"
        ]
        == 1.0
    )


def test_a_users_loss_gets_the_bound_that_it_asks_for(registries):
    seen = []

    @register_own_loss("one_sided")
    def one_sided_loss(*, log_probs_BT, old_log_probs_BT, advantages_BT, clip_ratio_high):
        seen.append(clip_ratio_high)
        return PolicyLoss(
            loss_BT=-advantages_BT
            * (log_probs_BT - old_log_probs_BT).exp().clamp(max=1 + clip_ratio_high)
        )

    make_actor(make_engine(), loss="one_sided", clip_ratio_low=0.1, clip_ratio_high=0.28).update(
        trajectories(2)
    )
    assert seen == [0.28]


def test_a_metric_that_is_nan_does_not_end_the_update(registries):
    @register_own_loss("measured")
    def measured_loss(*, log_probs_BT, advantages_BT):
        return PolicyLoss(
            loss_BT=-advantages_BT * log_probs_BT,
            metrics_BT={"drift": torch.full_like(log_probs_BT, torch.nan)},
        )

    metrics = make_actor(make_engine(), loss="measured").update(trajectories(2))
    assert math.isnan(metrics["actor/drift"])
    assert metrics["actor/updates"] == 1.0


def test_nan_log_probs_are_not_blamed_on_the_loss(registries):
    @register_own_loss("plain")
    def plain_loss(*, log_probs_BT, advantages_BT):
        return PolicyLoss(loss_BT=-advantages_BT * log_probs_BT)

    engine = make_engine()
    with torch.no_grad():
        engine.module.head.weight.fill_(torch.nan)
    with pytest.raises(TensorError, match=r"^log_probs is nan"):
        make_actor(engine, loss="plain").update(trajectories(2))


def test_a_selection_sees_the_policy_as_it_is_before_the_step():
    """With distant old log-probs every token is clipped, and Clip-Cov has no candidate.

    With those of the current weights it has candidates.
    """
    batch, engine = trajectories(6), make_engine()
    options = {
        "loss": "clip_cov",
        "loss_options": {"clip_cov_ratio": 1.0, "clip_cov_lb": -100.0, "clip_cov_ub": 100.0},
    }
    batch["advantages"] = torch.ones(6, 12)
    batch["old_log_probs"] = torch.full((6, 12), -50.0)
    actor = make_actor(engine, **options)
    assert actor.update(batch)["actor/selected_share"] == 0.0
    batch["old_log_probs"] = actor.compute_log_prob(batch).log_probs_BT
    assert actor.update(batch)["actor/selected_share"] == 1.0


def test_a_nan_is_refused_before_a_selection_is_made():
    batch = trajectories(4)
    batch["advantages"][2, 0] = torch.nan
    with pytest.raises(TensorError, match="advantages is nan in row 2"):
        make_actor(make_engine(), loss="kl_cov").update(batch)


def test_the_batch_is_left_without_the_column_of_the_selection():
    batch = trajectories(4)
    before = set(batch.keys())
    make_actor(make_engine(), loss="kl_cov").update(batch)
    assert set(batch.keys()) == before


def test_an_entropy_that_is_not_finite_is_named():
    rows = trajectories(2)
    log_probs_BT = torch.zeros(rows["response_mask"].shape)
    scores = TokenScores(log_probs_BT, torch.full_like(log_probs_BT, math.nan))
    for coefficient in (0, 0.01):
        loss = resolved("pipeline=grpo", f"{ACTOR}.entropy_coef={coefficient}")
        with pytest.raises(TensorError, match="entropy is nan"):
            loss.of_micro_batch(scores, rows, old_column="old_log_probs", gap=False, version=None)


def test_an_entropy_without_a_weight_has_no_gradient():
    rows = trajectories(2)
    zeros_BT = torch.zeros(rows["response_mask"].shape)
    for coefficient in (0, 0.01):
        entropy_BT = zeros_BT.clone().requires_grad_()
        scores = TokenScores(zeros_BT.clone().requires_grad_(), entropy_BT)
        loss = resolved("pipeline=grpo", f"{ACTOR}.entropy_coef={coefficient}")
        loss.of_micro_batch(
            scores, rows, old_column="old_log_probs", gap=False, version=None
        ).loss.backward()
        assert (entropy_BT.grad is None) == (coefficient == 0)
