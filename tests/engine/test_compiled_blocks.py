"""Compiled blocks have the scores and gradients of plain ones, and act uncompiled."""

import pytest
import torch
from ranks_at_work import run_on_ranks
from tiny_text import text_rows, tiny_model
from tiny_training import largest_difference, make_actor, make_engine
from torch import nn
from torch._dynamo.utils import counters

from siirl.engine.actor.text_scorer import text_scorer
from siirl.errors import ConfigError
from siirl.models.language_model import load_language_model
from siirl.params.model_args import LoraArguments

SHIPPED = "assets/tiny_lm"
TRACED = "aot_eager"  # as inductor, up to the code that it makes


def updated(ranks=None, *, rows=slice(None), **options):
    """Gradient and scores of a language model, whose micro-batches have several lengths."""
    engine = make_engine(
        ranks, module=tiny_model(), scorer=text_scorer, micro_batch_size=2, **options
    )
    actor, batch = make_actor(engine), text_rows()[rows]
    scores_BT = actor.compute_log_prob(batch).log_probs_BT
    actor.update(batch)
    return engine.gradients[0], scores_BT


def require_equal(found, expected):
    assert largest_difference(found[0], expected[0]) < 1e-5
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-5)


@pytest.fixture(autouse=True)
def afresh():
    """Other tests compile and act as if nothing had been compiled here."""
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.set_stance("default")


def test_compiled_blocks_have_the_gradient_and_the_scores_of_plain_ones():
    require_equal(updated(compiler=TRACED), updated())
    assert counters["stats"]["unique_graphs"] > 0


def test_acting_compiles_nothing():
    engine = make_engine(module=tiny_model(), scorer=text_scorer, compiler=TRACED)
    with torch.no_grad():
        engine.module(torch.ones(1, 3, dtype=torch.long), torch.arange(3)[None])
    assert counters["stats"]["unique_graphs"] == 0


@pytest.mark.filterwarnings("error:.*recompile")
def test_batches_of_many_sizes_with_adapters_and_a_reference_stay_compiled():
    module = load_language_model(SHIPPED, lora=LoraArguments(rank=2))
    engine = make_engine(
        module=module, scorer=text_scorer, compiler="eager", compute_dtype=torch.bfloat16
    )
    actor, batch = make_actor(engine), text_rows()
    for size in (1, 2, len(batch)):
        engine.micro_batches.size = size
        with module.without_adapter():
            engine.forward(batch, lambda scores, _: scores.log_probs_BT)
        actor.compute_log_prob(batch)
        actor.update(batch)
    assert not [reason for reason in counters["unimplemented"] if "limit" in reason]


def test_an_engine_that_is_not_compiled_may_compile_its_attention():
    make_engine(module=tiny_model(), scorer=text_scorer, compiler=TRACED)
    stances = []

    def scorer(*arguments):
        stances.append(torch._dynamo.eval_frame._stance.stance)
        return text_scorer(*arguments)

    plain = make_engine(module=tiny_model(), scorer=scorer)
    make_actor(plain).compute_log_prob(text_rows())
    assert set(stances) == {"default"}


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ConfigError, match="this model has none"):
        make_engine(module=nn.Linear(2, 2), compiler=TRACED)


def on_two_ranks(ranks):
    gradient, _ = updated(ranks, rows=slice(ranks.rank, None, 2), compiler=TRACED)
    return gradient, counters["stats"]["unique_graphs"]


@pytest.mark.slow  # each rank traces all blocks: 40 s
def test_two_ranks_with_compiled_blocks_have_the_gradient_of_one():
    expected, _ = updated()
    for gradient, graphs in run_on_ranks(on_two_ranks):
        assert graphs > 0
        assert largest_difference(gradient, expected) < 1e-5


@pytest.mark.slow  # makes and compiles C++: a minute
def test_code_of_inductor_has_the_gradient_and_the_scores_of_plain_blocks():
    require_equal(updated(compiler="inductor"), updated())
