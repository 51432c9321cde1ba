"""Losses with one ratio for all tokens of a decision, against Stable-Baselines3 and by hand."""

import json
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from tiny_training import CHUNKS, TOKENS, largest_difference, make_actor, make_engine, trajectories

from siirl.algos.distributions import Gaussian
from siirl.algos.log_probs import TokenScores
from siirl.engine.actor.actor_loss import ActorLoss
from siirl.engine.actor.chunk_windows import chunk_windows
from siirl.errors import ConfigError
from siirl.params import ActorArguments
from siirl.params.model_args import ImportanceArguments

SB3 = json.loads((Path(__file__).parents[1] / "algos" / "sb3" / "policy_loss.json").read_text())


def decision_loss(**options):
    return ActorLoss(ActorArguments(ratio_level="decision", **options), decision_tokens=TOKENS)


def decision_actor(engine, **options):
    return make_actor(engine, ratio_level="decision", decision_tokens=TOKENS, **options)


def test_an_update_has_the_gradients_of_stable_baselines3s():
    weights = {
        name: torch.tensor(SB3[name], requires_grad=True) for name in ("weight", "bias", "log_std")
    }
    states, old_B = torch.tensor(SB3["states"]), torch.tensor(SB3["old_log_probs"])
    scores = Gaussian(
        mean=states @ weights["weight"].T + weights["bias"], log_std=weights["log_std"]
    ).scores(torch.tensor(SB3["actions"]))
    dimensions = scores.log_probs_BT.shape[1]
    assert dimensions == TOKENS
    rows = TensorDict(
        {
            "proprioception": states[:, None],
            "responses": torch.tensor(SB3["actions"]),
            "response_mask": torch.ones_like(scores.log_probs_BT, dtype=torch.bool),
            # the buffer has the sum over dimensions: any summands do
            "old_log_probs": (old_B / dimensions)[:, None].expand(-1, dimensions),
            "advantages": torch.tensor(SB3["advantages"])[:, None].expand(-1, dimensions),
        },
        batch_size=len(old_B),
    )
    loss = decision_loss(
        clip_ratio=SB3["clip_range"], clip_ratio_c=None, entropy_coef=SB3["entropy_coef"]
    )
    result = loss.of_micro_batch(scores, rows, old_column="old_log_probs", gap=False, version=None)
    (result.loss / loss.weight(rows)).backward()
    for name, gradient in SB3["gradients"].items():
        torch.testing.assert_close(weights[name].grad, torch.tensor(gradient))
    assert float(loss.weight(rows)) == len(old_B)
    clipped = result.sums["actor/pg_clipfrac"] / result.sums["tokens"]
    # Stable-Baselines3 counts ratios outside of the range, siirl those that the loss clips
    assert 0 < float(clipped) <= SB3["clip_fraction"]


def test_a_decision_of_one_token_has_the_token_as_its_ratio():
    rows = trajectories(4)
    first = torch.arange(CHUNKS * TOKENS) % TOKENS == 0
    rows["response_mask"] = rows["response_mask"] * first
    by_token, by_decision = make_engine(), make_engine()
    make_actor(by_token, entropy_coef=0.01).update(rows)
    decision_actor(by_decision, entropy_coef=0.01).update(rows)
    assert largest_difference(by_token.gradients[0], by_decision.gradients[0]) < 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "decoupled"},
        {"loss": "gspo"},
        {"entropy_coef": 0.01, "use_kl_loss": True, "kl_loss_coef": 0.1},
        {"importance": ImportanceArguments(level="token")},
        {"loss_agg_mode": "seq-mean-token-sum-norm"},
    ],
)
def test_micro_batches_do_not_change_the_gradient(options):
    """Rows of different lengths; the last decision of some was executed in part."""
    rows = trajectories(5)
    rows["ref_log_prob"] = rows["old_log_probs"] + 0.1
    whole, windows = make_engine(), make_engine(cut=lambda batch: chunk_windows(batch, chunks=3))
    decision_actor(whole, **options).update(rows)
    decision_actor(windows, **options).update(rows)
    assert largest_difference(whole.gradients[0], windows.gradients[0]) < 1e-6
    by_token = make_engine()
    make_actor(by_token, **options).update(rows)
    assert largest_difference(whole.gradients[0], by_token.gradients[0]) > 1e-4


def test_tokens_that_were_not_executed_do_not_count():
    rows = trajectories(3)
    scores = TokenScores(
        log_probs_BT=torch.zeros(3, CHUNKS * TOKENS, requires_grad=True),
        entropy_BT=torch.zeros(3, CHUNKS * TOKENS),
    )
    off = rows["response_mask"] == 0
    rows["old_log_probs"] = torch.where(off, torch.nan, rows["old_log_probs"])
    result = decision_loss().of_micro_batch(
        scores, rows, old_column="old_log_probs", gap=False, version=None
    )
    result.loss.backward()
    assert torch.isfinite(result.loss)
    assert not scores.log_probs_BT.grad[off].any()


def test_entropy_and_kl_are_logged_per_token():
    rows = trajectories(3)
    by_token, by_decision = make_actor(make_engine()), decision_actor(make_engine())
    expected, found = by_token.update(rows), by_decision.update(rows)
    for name in ("actor/entropy", "actor/ppo_kl"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)


@pytest.mark.parametrize(("tokens", "decisions"), [(3, 1), (7, 3), (12, 4)])
def test_the_longest_response_has_the_decisions_that_its_tokens_begin(tokens, decisions):
    arguments = ActorArguments(ratio_level="decision", loss_agg_mode="seq-mean-token-sum-norm")
    assert ActorLoss(arguments, horizon=tokens, decision_tokens=3).horizon == decisions


def test_the_gap_of_acting_and_training_remains_that_of_tokens():
    rows = trajectories(2)
    rows["rollout_log_probs"] = rows["old_log_probs"]
    by_token = make_actor(make_engine()).update(rows)
    by_decision = decision_actor(make_engine()).update(rows)
    for name in ("rollout/log_prob_gap", "rollout/log_prob_gap_mean"):
        assert by_decision[name] == pytest.approx(by_token[name])


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_a_loss_that_selects_tokens_is_refused(name):
    with pytest.raises(
        ConfigError, match=f"loss={name} selects single tokens.*set .*ratio_level=token"
    ):
        decision_loss(loss=name)


def test_the_plan_names_the_level():
    assert decision_loss().describe().endswith("token-mean; by decision")
