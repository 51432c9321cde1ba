"""FLOPs of a row, against torch's count of a pass."""

import pytest
import torch
from tensordict import TensorDict
from tiny_models import tiny_causal_lm
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from siirl.models.language_model import LanguageModel
from siirl.models.training_flops import flops_of_rows, text_flops

TOKENS = 24


@pytest.mark.parametrize("kind", ["tied", "separate"])
def test_a_row_costs_what_torch_counts(kind):
    """torch counts full attention (a causal one needs half), and no norms or biases."""
    model = LanguageModel(tiny_causal_lm(kind))
    model.causal_lm.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        logits = model.causal_lm(torch.arange(TOKENS)[None] % 40).logits
        logits.sum().backward()
    config = model.config.get_text_config()
    square = 6 * config.num_hidden_layers * 16 * TOKENS**2  # 2 heads of 8
    tokens_B = torch.tensor([TOKENS], dtype=torch.float64)
    ours = text_flops(model, tokens_B=tokens_B, response_B=tokens_B).item() + square
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.12)


def test_work_of_long_rows_grows_faster_than_their_tokens():
    model = LanguageModel(tiny_causal_lm("tied"))
    mask_BS = (torch.arange(64) < torch.tensor([[16], [64]])).long()
    batch = TensorDict({"attention_mask": mask_BS, "response_mask": mask_BS * 0}, batch_size=[2])
    short, long = flops_of_rows(model, batch)
    quadratic = 6 * 2 * 16
    assert long - 4 * short == quadratic * (64**2 - 4 * 16**2)


def test_work_of_another_kind_of_model_is_not_known():
    mask_BT = torch.ones(1, 3, dtype=torch.long)
    batch = TensorDict({"attention_mask": mask_BT, "response_mask": mask_BT}, batch_size=[1])
    assert flops_of_rows(nn.Linear(2, 2), batch) is None
