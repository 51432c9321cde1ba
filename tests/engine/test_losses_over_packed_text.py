"""Policy losses on text: packed rows have the gradient of single rows, by budget, and padded.

Every policy loss and every aggregation is tested. The scorer and its packing are those of training
(`siirl.engine.actor.text_scorer`). `test_losses_over_ranks` covers actions, which are not packed.
"""

from typing import Any

import pytest
import torch
from loss_cases import OPTIONS, STILL, TOLERANCE, configurations, gradient_norms, gradients
from ranks_at_work import run_on_ranks
from tensordict import TensorDict
from tiny_text import SIZES, text_rows
from tiny_training import largest_difference, make_engine
from transformers import AutoModelForCausalLM, Qwen3Config

from siirl.engine.actor.packing import model_width, pack_rows
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.training.collectives import OneProcess
from siirl.models.language_model import LanguageModel

TEMPERATURE = 1.3  # that of `make_engine`
OTHER_POLICIES = ("old_log_probs", "rollout_log_probs", "ref_log_prob")
SHARE = 2  # rank 0 has the first two rows
WAYS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "single rows": ({"micro_batch_size": 1}, {}),
    "budget of tokens": ({"micro_batch_tokens": 20}, {}),
    "padded further": ({"micro_batch_size": 100}, {"further_left": 3, "further_right": 2}),
}
"""Name to engine options and padding; compared with all rows at once, in one lane."""


def language_model() -> LanguageModel:
    """Wide enough for a lane of 32 tokens (all rows of `text_rows`); otherwise narrow."""
    config = Qwen3Config(
        **{**SIZES, "hidden_size": 128, "intermediate_size": 16}, num_key_value_heads=1, head_dim=8
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        causal_lm = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for weight in causal_lm.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
    return LanguageModel(causal_lm)


def lines_of_text(*, further_left: int = 0, further_right: int = 0) -> TensorDict:
    """`text_rows` with log-probs of three other policies near the model's own.

    `further` padding changes nothing else.
    """
    rows, padded = text_rows(), text_rows(further_left=further_left, further_right=further_right)
    with torch.no_grad():
        log_probs_BT = text_scorer(language_model(), rows, TEMPERATURE).log_probs_BT
    generator = torch.Generator().manual_seed(1)
    columns = {
        name: log_probs_BT + 0.3 * torch.randn(log_probs_BT.shape, generator=generator)
        for name in OTHER_POLICIES
    }
    for name, column_BT in {**columns, "advantages": rows["advantages"]}.items():
        padded[name] = torch.nn.functional.pad(column_BT, (0, further_right))
    return padded


def found_by(ranks: Any, options: dict[str, int], padding: dict[str, int]) -> Any:
    """Gradient and metrics of an update for each case."""
    batch = lines_of_text(**padding)
    if ranks.size > 1:
        batch = batch[:SHARE] if ranks.rank == 0 else batch[SHARE:]
    return gradients(
        make_engine(ranks, module=language_model(), scorer=text_scorer, optim=STILL, **options),
        batch,
    )


@pytest.fixture(scope="module")
def at_once():
    return found_by(OneProcess(), {"micro_batch_size": 100}, {})


@pytest.fixture(scope="module")
def cut():
    return {way: found_by(OneProcess(), *WAYS[way]) for way in WAYS}


@pytest.fixture(scope="module")
def two_ranks():
    return run_on_ranks(found_by, {"micro_batch_size": 3}, {}, ranks=2)


def test_all_rows_go_into_one_lane_and_a_row_alone_into_its_own():
    """Shows that the gradients below compare packed with unpacked rows."""
    batch, width = lines_of_text(), model_width(language_model())
    lanes, tokens = pack_rows(batch, width=width, share_prompts=False).input_ids_LS.shape
    assert (lanes, tokens) == (
        1,
        8 + 6 + 7 + 4 + 5,
    )  # up to the token before the last one that is scored
    alone = [
        pack_rows(batch[row : row + 1], width=width, share_prompts=False) for row in (0, 1, 3, 4, 5)
    ]
    assert [packed.input_ids_LS.shape[1] for packed in alone] == [8, 6, 7, 4, 5]


@pytest.mark.parametrize("case", configurations(), ids=str)
def test_every_case_has_a_gradient(at_once, case):
    gradient, metrics = at_once[case]
    assert max(float(tensor.abs().max()) for tensor in gradient.values()) > 0
    assert metrics["actor/updates"] == 1.0


@pytest.mark.parametrize("case", configurations(), ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_rows_that_are_cut_or_padded_have_the_gradient_of_all_in_one_lane(at_once, cut, way, case):
    assert largest_difference(at_once[case][0], cut[way][case][0]) < TOLERANCE


@pytest.mark.slow  # two processes that import transformers: 20 s of CPU time
@pytest.mark.parametrize("case", configurations(), ids=str)
def test_two_ranks_have_the_gradient_and_the_metrics_of_one(at_once, two_ranks, case):
    for rank in two_ranks:
        assert largest_difference(at_once[case][0], rank[case][0]) < TOLERANCE
        assert rank[case][1] == pytest.approx(at_once[case][1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_selection_holds_back_some_tokens_and_not_all(at_once, name):
    assert 0.05 < at_once[name, "token-mean"][1]["actor/selected_share"] < 0.5


def test_the_cases_have_different_losses(at_once):
    norms = gradient_norms(at_once)
    assert len(set(norms)) == len(norms)
