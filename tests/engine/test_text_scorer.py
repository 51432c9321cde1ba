"""Packed rows have the log-probs and gradients of single rows.

Tokens that are not scored have 0.
"""

import pytest
import torch
from tiny_text import PAD, PROMPTS, RESPONSES, score_plainly, text_rows, tiny_model
from transformers.masking_utils import find_packed_sequence_indices

from siirl.engine.actor.packing import pack_rows
from siirl.engine.actor.text_scorer import text_scorer
from siirl.errors import TensorError
from siirl.models.language_model import recompute_activations

KINDS = ("tied", "separate", "biased head")


def gradient(model, loss):
    """Whole gradient of a loss as one vector."""
    model.zero_grad()
    loss.backward()
    return torch.cat(
        [
            torch.zeros_like(w).flatten() if w.grad is None else w.grad.flatten()
            for w in model.parameters()
        ]
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_each_row_alone_with_whole_logits(kind, temperature):
    model, batch = tiny_model(kind), text_rows()
    scores = text_scorer(model, batch, temperature)
    log_probs_BT, entropy_BT = score_plainly(model, batch, temperature)
    torch.testing.assert_close(scores.log_probs_BT, log_probs_BT, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.entropy_BT, entropy_BT, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_whole_logits(kind):
    model, batch = tiny_model(kind), text_rows()
    weights_BT = torch.randn(batch["responses"].shape, generator=torch.Generator().manual_seed(1))
    scores = text_scorer(model, batch, 0.7)
    found = gradient(
        model,
        (scores.log_probs_BT * weights_BT).sum() + 0.3 * (scores.entropy_BT * weights_BT).sum(),
    )
    log_probs_BT, entropy_BT = score_plainly(model, batch, 0.7)
    expected = gradient(
        model, (log_probs_BT * weights_BT).sum() + 0.3 * (entropy_BT * weights_BT).sum()
    )
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_rows_log_probs_do_not_depend_on_its_neighbours(attention):
    model, batch = tiny_model(), text_rows()
    model.causal_lm.set_attn_implementation(attention)
    together = text_scorer(model, batch, 1.0).log_probs_BT
    other = batch.clone()
    other["input_ids"][1:] = 39
    other["responses"][1:] = 39
    torch.testing.assert_close(
        text_scorer(model, other, 1.0).log_probs_BT[0], together[0], rtol=0, atol=1e-6
    )
    for row in range(len(batch)):
        torch.testing.assert_close(
            text_scorer(model, batch[row : row + 1], 1.0).log_probs_BT[0],
            together[row],
            rtol=0,
            atol=1e-6,
        )


def test_padding_on_either_side_changes_nothing():
    model = tiny_model()
    plain, padded = (
        text_scorer(model, text_rows(further_left=left, further_right=right), 1.0)
        for left, right in ((0, 0), (3, 2))
    )
    torch.testing.assert_close(
        padded.log_probs_BT[:, : max(RESPONSES)], plain.log_probs_BT, rtol=0, atol=1e-6
    )
    assert not padded.log_probs_BT[:, max(RESPONSES) :].any()


def test_values_in_padding_do_not_matter():
    model, batch = tiny_model(), text_rows()
    junk = batch.clone()
    junk["input_ids"][batch["attention_mask"] == 0] = 17
    torch.testing.assert_close(
        text_scorer(model, junk, 1.0).log_probs_BT,
        text_scorer(model, batch, 1.0).log_probs_BT,
        rtol=0,
        atol=0,
    )


def test_tokens_of_tools_are_read_and_not_scored():
    model, batch = tiny_model(), text_rows()
    scores = text_scorer(model, batch, 1.0)
    masked = batch["response_mask"] == 0
    assert not scores.log_probs_BT[masked].any()
    assert not scores.entropy_BT[masked].any()
    other = batch.clone()
    # The tool returned something else.
    other["input_ids"][0, max(PROMPTS) + 1] = other["responses"][0, 1] = 38
    moved = (text_scorer(model, other, 1.0).log_probs_BT - scores.log_probs_BT)[0].detach()
    assert moved[0] == 0
    assert abs(moved[3]) > 1e-3


@pytest.mark.parametrize("rows", [slice(2, 3), slice(0, 6)])
def test_rows_without_scored_tokens_run_the_model_with_a_gradient_of_zero(rows):
    model, batch = tiny_model("separate"), text_rows()[rows].clone()
    batch["response_mask"].zero_()
    batch["attention_mask"].zero_()  # like a padding row
    found = gradient(model, text_scorer(model, batch, 1.0).log_probs_BT.sum())
    assert all(weight.grad is not None for weight in model.parameters())
    assert not found.any()


def test_rows_without_any_response_column_run_too():
    model, batch = tiny_model(), text_rows()
    batch["responses"], batch["response_mask"] = (
        batch["responses"][:, :0],
        batch["response_mask"][:, :0],
    )
    scores = text_scorer(model, batch, 1.0)
    assert scores.log_probs_BT.shape == (6, 0)
    assert not gradient(model, scores.log_probs_BT.sum()).any()


def test_lanes_hold_each_needed_token_once_and_no_more_than_their_length():
    packed = pack_rows(text_rows(), width=48, share_prompts=False)
    # Up to the token before the last scored one: 8, 6, nothing of the empty row, 7, 4,
    # 5; lanes of 8 + 4, 7 + 5 and 6.
    assert packed.input_ids_LS.shape == (3, 12)
    assert int((packed.input_ids_LS != PAD).sum()) == 8 + 6 + 7 + 4 + 5


def test_a_row_longer_than_a_lane_makes_longer_lanes():
    assert pack_rows(text_rows(), width=4, share_prompts=False).input_ids_LS.shape == (
        5,
        8,
    )  # 6, 5 and 4 fit into no other lane


def test_rows_that_are_alone_in_their_lanes_need_no_mask():
    """Without one torch takes its fastest kernel, which knows causal attention and no other."""
    packed = pack_rows(text_rows(), width=4, share_prompts=False)
    assert find_packed_sequence_indices(packed.position_ids_LS) is None
    together = pack_rows(text_rows(), width=48, share_prompts=False)
    assert find_packed_sequence_indices(together.position_ids_LS) is not None


def test_scores_of_rows_alone_in_their_lanes_are_those_of_rows_that_share_lanes():
    batch, wide, narrow = text_rows(), tiny_model(), tiny_model()
    narrow.config.hidden_size = 4  # lanes of one token, or of the longest row
    assert pack_rows(batch, width=4, share_prompts=False).input_ids_LS.shape[0] == 5
    torch.testing.assert_close(
        text_scorer(narrow, batch, 1.0).log_probs_BT,
        text_scorer(wide, batch, 1.0).log_probs_BT,
        rtol=0,
        atol=1e-5,
    )


def test_recomputed_activations_do_not_change_the_gradient():
    batch, gradients = text_rows(), []
    for recomputing in (False, True):
        model = tiny_model()
        if recomputing:
            recompute_activations(model)
        gradients.append(gradient(model, text_scorer(model, batch, 1.0).log_probs_BT.sum()))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-6)


def test_passes_in_bfloat16_are_near_those_of_the_model_whose_head_rounds_its_logits():
    model, batch = tiny_model(), text_rows()
    with torch.autocast("cpu", torch.bfloat16):
        found = text_scorer(model, batch, 1.0).log_probs_BT
        whole, _ = score_plainly(model, batch, 1.0)
    exact = text_scorer(model, batch, 1.0).log_probs_BT
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, whole.float(), rtol=0, atol=0.05)
    assert 0 < float((found - exact).detach().abs().max()) < 0.2


def test_a_model_in_bfloat16_is_scored():
    scores = text_scorer(tiny_model(dtype=torch.bfloat16), text_rows(), 1.0)
    torch.testing.assert_close(
        scores.log_probs_BT,
        text_scorer(tiny_model(), text_rows(), 1.0).log_probs_BT,
        rtol=0,
        atol=0.2,
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda batch: batch.exclude("attention_mask"),
            "needs the column 'attention_mask'; it has: ",
        ),
        (
            lambda batch: batch.update({"response_mask": batch["response_mask"][:, :2]}),
            "do not fit each other",
        ),
        (
            lambda batch: batch.update({"attention_mask": 0 * batch["attention_mask"]}),
            "nothing predicts it",
        ),
        (
            lambda batch: batch.update({"response_mask": 2 * batch["response_mask"]}),
            "a mask holds only 0 and 1",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(change, told):
    with pytest.raises(TensorError, match=told):
        text_scorer(tiny_model(), change(text_rows()), 1.0)
