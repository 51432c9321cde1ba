"""LoRA on two real ranks: the gradient of one rank, of adapters only; the base is the reference.

Slow: each process imports peft.
"""

import functools

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


def one_narrow_update(ranks, folder):
    """Types and weights after an update in bfloat16, and of engines that resume from it and from a
    checkpoint with all weights in float32.
    """
    options = {"scorer": text_scorer, "compute_dtype": torch.bfloat16}
    engine, resumed = (make_engine(ranks, module=adapted(), **options) for _ in range(2))
    make_actor(engine).update(text_rows()[ranks.rank :: ranks.size])
    engine.save(folder / "narrow")
    resumed.load(folder / "narrow")
    wide = make_engine(ranks, module=adapted(), scorer=text_scorer)
    wide.save(folder / "wide")
    from_wide = make_engine(ranks, module=adapted(), **options)
    from_wide.load(folder / "wide")
    return {
        "types": {name: weight.dtype for name, weight in engine.module.named_parameters()},
        "weights": weights(engine),
        "resumed": weights(resumed),
        "from wide": weights(from_wide),
        "wide": weights(wide),
    }


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """The results of one rank, then those of two ranks."""
    run = functools.partial(tmp_path_factory.mktemp, "narrow")
    return [
        one_narrow_update(OneProcess(), run()),
        *run_on_ranks(one_narrow_update, run(), ranks=2),
    ]


def test_frozen_weights_are_in_the_type_of_the_passes_and_adapters_in_float32(narrow):
    for found in narrow:
        types = found["types"]
        assert {types.pop(name) for name in list(types) if ".lora_" in name} == {torch.float32}
        assert set(types.values()) == {torch.bfloat16}
        assert largest_difference(narrow[0]["weights"], found["weights"]) < 1e-4


def test_a_narrow_model_resumes_from_narrow_and_from_wide_weights(narrow):
    for found in narrow:
        assert largest_difference(found["weights"], found["resumed"]) == 0.0
        for name, weight in found["from wide"].items():
            assert torch.equal(weight, found["wide"][name].to(weight.dtype))


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
