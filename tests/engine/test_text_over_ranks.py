"""A language model on two real ranks: gradient of one, whole head weights, and folders."""

import copy
from pathlib import Path

import pytest
import torch
from ranks_at_work import run_on_ranks
from tiny_text import text_rows, tiny_model
from tiny_training import largest_difference, make_actor, make_engine, weights

from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.sharding import repeated_blocks
from siirl.engine.training.weight_sync import ActingModule, acting_copy
from siirl.errors import ConfigError, InvariantError
from siirl.models.adapters import narrow
from siirl.models.language_model import LanguageModel, load_language_model, recompute_activations
from siirl.models.weight_rows import in_rows

KINDS = ("tied", "separate")
SHARES = {"even": 3, "uneven": 5, "one rank is empty": 0}
TERMS = {"entropy_coef": 0.01}


def engine_of(ranks, kind, **options):
    return make_engine(
        ranks, module=options.pop("module", None) or tiny_model(kind), scorer=text_scorer, **options
    )


def own_rows(ranks, share):
    """Rank 0 has the first `share` rows, rank 1 the rest; one rank has all."""
    batch = text_rows()
    if ranks.size == 1:
        return batch
    return batch[:share] if ranks.rank == 0 else batch[share:]


def one_update(ranks, kind, share, **options):
    """Own log-probs before, gradient, and weights after."""
    engine = engine_of(ranks, kind, **options)
    actor, batch = make_actor(engine, **TERMS), own_rows(ranks, share)
    log_probs_BT = actor.compute_log_prob(batch).log_probs_BT
    actor.update(batch)
    return {"gradient": engine.gradients[0], "weights": weights(engine), "log_probs": log_probs_BT}


def held_to_a_reference(ranks, share):
    """A reference's log-probs of own rows, and the gradient of an update with a KL to it.

    The reference has other weights.
    """
    reference = make_actor(engine_of(ranks, "tied", module=tiny_model("tied", seed=1), optim=None))
    engine, batch = engine_of(ranks, "tied"), own_rows(ranks, share)
    batch["ref_log_prob"] = reference.compute_log_prob(batch).log_probs_BT
    metrics = make_actor(engine, **TERMS, use_kl_loss=True, kl_loss_coef=0.5).update(batch)
    return {
        "gradient": engine.gradients[0],
        "reference": batch["ref_log_prob"],
        "kl": metrics["actor/kl_loss"],
    }


def recomputing():
    model = tiny_model("tied")
    recompute_activations(model)
    return model


def gaps_in_bfloat16(ranks):
    """Mean difference between log-probs of an acting copy and of training.

    Once with weights in the compute dtype, once as stored.
    """
    module, batch = tiny_model("tied"), own_rows(ranks, 3)
    copies = acting_copy(module, torch.bfloat16), acting_copy(module, None)
    engine = engine_of(ranks, "tied", module=module, compute_dtype=torch.bfloat16)
    trained_BT = make_actor(engine).compute_log_prob(batch).log_probs_BT
    for copied in copies:
        ActingModule(copied, trained=module).take_weights(engine.weights_in_turn())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return [
            float((text_scorer(copied, batch, 1.3).log_probs_BT - trained_BT).abs().mean())
            for copied in copies
        ]


def too_small_a_budget(ranks):
    """Errors of each rank if only rank 1 has a row longer than the budget."""
    actor = make_actor(engine_of(ranks, "tied", micro_batch_tokens=8))
    try:
        actor.update(text_rows()[2:3] if ranks.rank == 0 else text_rows()[:1])
    except (ConfigError, InvariantError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def export(ranks, folder):
    """Whole weights saved by each rank for its vLLM, and a checkpoint.

    The acting copy has the scores of the trained weights.
    """
    module = tiny_model("tied")
    acting = copy.deepcopy(module)
    engine = engine_of(ranks, "tied", module=module)
    make_actor(engine).update(own_rows(ranks, 3))
    state = engine.upload_weights()
    engine.save(Path(folder) / "checkpoint")
    module.save(Path(folder) / f"exported by rank {ranks.rank}", state=state)
    if ranks.rank == 0:
        module.describe(Path(folder) / "checkpoint")
    acting.load_state_dict(state)
    return text_scorer(acting, text_rows(), 1.0).log_probs_BT.detach()


def reference_in_the_compute_dtype(ranks):
    """Log-probs of a sharded reference with weights in float32, and in the type of the passes."""
    found = []
    for narrowed in (False, True):
        module = tiny_model("tied", seed=1)
        if narrowed:
            narrow(module.parameters(), torch.bfloat16)
        engine = engine_of(ranks, "tied", module=module, optim=None, compute_dtype=torch.bfloat16)
        found.append(make_actor(engine).compute_log_prob(own_rows(ranks, 3)).log_probs_BT)
    return found


def on_two_ranks(ranks, folder):
    cases = {
        (kind, share): one_update(ranks, kind, SHARES[share]) for kind in KINDS for share in SHARES
    }
    return {
        "updates": cases,
        "reference": {share: held_to_a_reference(ranks, SHARES[share]) for share in SHARES},
        "by tokens": one_update(ranks, "tied", 5, micro_batch_tokens=10),
        "recomputed": one_update(ranks, "tied", 5, module=recomputing()),
        "bfloat16": one_update(ranks, "tied", 3, compute_dtype=torch.bfloat16),
        "gaps in bfloat16": gaps_in_bfloat16(ranks),
        "references in bfloat16": reference_in_the_compute_dtype(ranks),
        "budget": too_small_a_budget(ranks),
        "exported": export(ranks, folder),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def two_ranks(folder):
    return run_on_ranks(on_two_ranks, str(folder), ranks=2)


@pytest.fixture(scope="module")
def alone():
    return {kind: one_update(OneProcess(), kind, None) for kind in KINDS}


def test_each_block_is_a_separate_unit():
    model = tiny_model()
    assert repeated_blocks(model) == list(model.causal_lm.model.layers)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_have_the_gradient_and_the_scores_of_one(alone, two_ranks, kind, share):
    for rank in two_ranks:
        update = rank["updates"][kind, share]
        assert largest_difference(alone[kind]["gradient"], update["gradient"]) < 1e-5
        assert largest_difference(alone[kind]["weights"], update["weights"]) < 1e-5
    scores = torch.cat([rank["updates"][kind, share]["log_probs"] for rank in two_ranks])
    torch.testing.assert_close(scores, alone[kind]["log_probs"], rtol=0, atol=1e-5)


def test_a_sharded_reference_in_the_type_of_its_passes_has_the_same_bits(two_ranks):
    for rank in two_ranks:
        wide_BT, narrow_BT = rank["references in bfloat16"]
        assert torch.equal(wide_BT, narrow_BT) and wide_BT.abs().sum() > 0


@pytest.mark.parametrize("share", SHARES)
def test_two_ranks_have_the_reference_and_the_gradient_of_a_kl_of_one(alone, two_ranks, share):
    expected = held_to_a_reference(OneProcess(), None)
    plainly_BT = text_scorer(
        tiny_model("tied", seed=1), text_rows(), 1.3
    ).log_probs_BT.detach()  # 1.3: the engine's temperature
    found = [rank["reference"][share] for rank in two_ranks]
    torch.testing.assert_close(
        torch.cat([rank["reference"] for rank in found]), plainly_BT, rtol=0, atol=1e-5
    )
    for rank in found:
        assert largest_difference(expected["gradient"], rank["gradient"]) < 1e-5
        assert rank["kl"] == pytest.approx(expected["kl"], rel=1e-5)
    # the KL has a gradient
    assert largest_difference(alone["tied"]["gradient"], expected["gradient"]) > 0.1


@pytest.mark.parametrize("way", ["by tokens", "recomputed"])
def test_neither_a_budget_nor_recomputing_changes_the_gradient_of_two_ranks(alone, two_ranks, way):
    for rank in two_ranks:
        assert largest_difference(alone["tied"]["gradient"], rank[way]["gradient"]) < 1e-5


def test_in_bfloat16_gradients_are_near_and_summed_in_float32(alone, two_ranks):
    for rank in two_ranks:
        gradient = rank["bfloat16"]["gradient"]
        assert {tensor.dtype for tensor in gradient.values()} == {torch.float32}
        assert 0 < largest_difference(alone["tied"]["gradient"], gradient) < 0.1


def test_in_bfloat16_one_rank_has_the_gradient_of_two_within_rounding(two_ranks):
    """One rank casts products under autocast, two cast weights and inputs of whole blocks."""
    one = one_update(OneProcess(), "tied", None, compute_dtype=torch.bfloat16)["gradient"]
    for rank in two_ranks:
        assert largest_difference(one, rank["bfloat16"]["gradient"]) < 0.1


def test_a_copy_that_acts_in_bfloat16_rounds_its_weights_as_those_that_are_trained(two_ranks):
    for rank in two_ranks:
        in_their_type, as_stored = rank["gaps in bfloat16"]
        assert in_their_type < 0.5 * as_stored


def test_weights_of_lower_precision_are_verified_on_arrival():
    copied, trained = acting_copy(tiny_model("tied", seed=1), torch.bfloat16), tiny_model("tied")
    (pair,) = ActingModule(copied, trained=trained).take_weights(
        in_rows(trained.state_dict().items())
    )
    assert pair.agrees
    assert torch.equal(copied.output_weight, trained.output_weight.bfloat16())
    assert {weight.dtype for weight in copied.parameters()} == {torch.bfloat16}
    assert torch.equal(
        copied.causal_lm.model.rotary_emb.inv_freq, trained.causal_lm.model.rotary_emb.inv_freq
    )


def test_a_row_over_the_budget_on_one_rank_stops_both_ranks(two_ranks):
    assert two_ranks[1]["budget"].startswith(
        "ConfigError: A row of 9 tokens exceeds the budget of 8"
    )
    assert two_ranks[0]["budget"].startswith(
        "InvariantError: Rank 1 failed, so all stop: ConfigError: A row of 9 tokens"
    )


@pytest.mark.parametrize("name", ["exported by rank 0", "exported by rank 1", "checkpoint"])
def test_a_model_saved_by_two_ranks_is_readable_by_all_users(two_ranks, folder, name):
    from transformers import AutoModelForCausalLM

    ours = load_language_model(folder / name)
    theirs = LanguageModel(AutoModelForCausalLM.from_pretrained(folder / name).eval())
    for model in (ours, theirs):
        scores = text_scorer(model, text_rows(), 1.0).log_probs_BT
        torch.testing.assert_close(scores, two_ranks[0]["exported"], rtol=0, atol=1e-6)
