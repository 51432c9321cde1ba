"""LoRA on two real ranks: the gradient of one rank, of adapters only; the base is the reference.

Slow: each process imports peft.
"""

import pytest
import torch
from ranks_at_work import run_on_ranks
from tiny_text import text_rows, tiny_model
from tiny_training import largest_difference, make_actor, make_engine, weights

from siirl.engine.actor.reference import WithoutAdapter
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.training.collectives import OneProcess
from siirl.models.adapters import add_adapters
from siirl.models.language_model import LanguageModel
from siirl.params.model_args import LoraArguments
from tests.models.tiny_models import move_adapters

pytestmark = pytest.mark.slow
LORA = LoraArguments(rank=2, alpha=4.0)


def adapted():
    causal_lm = tiny_model().causal_lm
    add_adapters(causal_lm, LORA)
    move_adapters(causal_lm, by=0.1, seed=3)
    return LanguageModel(causal_lm, lora=LORA)


def one_update(ranks):
    """Gradient, weights, and the reference's log-probs before and after the update."""
    module = adapted()
    engine = make_engine(ranks, module=module, scorer=text_scorer)
    actor, batch = make_actor(engine), text_rows()
    own = batch if ranks.size == 1 else (batch[:2], batch[2:])[ranks.rank]
    reference = WithoutAdapter(actor, module)
    before = reference.compute_log_prob(own).log_probs_BT
    actor.update(own)
    after = reference.compute_log_prob(own).log_probs_BT
    exported = module.exported_weights(engine.upload_weights())
    return {
        "gradient": engine.gradients[0],
        "weights": weights(engine),
        "reference": (before, after),
        "exported": exported,
    }


@pytest.fixture(scope="module")
def alone():
    return one_update(OneProcess())


@pytest.fixture(scope="module")
def two_ranks():
    return run_on_ranks(one_update, ranks=2)


def test_only_adapters_have_a_gradient_and_move(alone):
    assert all(".lora_" in name for name in alone["gradient"])
    before = adapted().state_dict()
    moved = {
        name for name, weight in alone["weights"].items() if not torch.equal(weight, before[name])
    }
    assert moved == set(alone["gradient"])


def test_two_ranks_have_the_gradient_of_one(alone, two_ranks):
    for rank in two_ranks:
        assert largest_difference(alone["gradient"], rank["gradient"]) < 1e-5
        assert largest_difference(alone["exported"], rank["exported"]) < 1e-5


def test_the_reference_is_the_model_below_before_and_after_the_update(alone, two_ranks):
    below = text_scorer(
        tiny_model(), text_rows(), 1.3
    ).log_probs_BT.detach()  # 1.3: the engine's temperature
    for side in (0, 1):
        torch.testing.assert_close(alone["reference"][side], below, rtol=0, atol=1e-6)
        torch.testing.assert_close(
            torch.cat([rank["reference"][side] for rank in two_ranks]), below, rtol=0, atol=1e-5
        )
