"""FLOPs of a row, against torch's count of a pass."""

import pytest
import torch
from tensordict import TensorDict
from tiny_models import SIZES, tiny_causal_lm
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from siirl.models.language_model import LanguageModel
from siirl.models.training_flops import flops_of_rows, text_flops

TOKENS = 24


@pytest.mark.parametrize("kind", ["tied", "separate"])
def test_a_row_costs_what_torch_counts(kind):
    """Full attention, although a causal one needs half; torch counts no norms or biases."""
    model = LanguageModel(tiny_causal_lm(kind))
    model.causal_lm.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        logits = model.causal_lm(torch.arange(TOKENS)[None] % 40).logits
        logits.sum().backward()
    tokens_B = torch.tensor([TOKENS], dtype=torch.float64)
    ours = text_flops(model, tokens_B=tokens_B, response_B=tokens_B).item()
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.12)


def test_work_of_long_rows_grows_faster_than_their_tokens():
    model = LanguageModel(tiny_causal_lm("tied"))
    mask_BS = (torch.arange(64) < torch.tensor([[16], [64]])).long()
    batch = TensorDict({"attention_mask": mask_BS, "response_mask": mask_BS * 0}, batch_size=[2])
    short, long = flops_of_rows(model, batch)
    quadratic = 6 * 2 * 16
    assert long - 4 * short == quadratic * (64**2 - 4 * 16**2)


def test_of_a_mixture_the_experts_that_a_token_uses_cost_what_torch_counts():
    """Two of eight experts; torch counts the router too."""
    config = Qwen3MoeConfig(**SIZES, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24)
    config._experts_implementation = "eager"  # torch does not count grouped products
    model = LanguageModel(AutoModelForCausalLM.from_config(config, attn_implementation="eager"))
    tokens_B = torch.tensor([TOKENS], dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        model.causal_lm(torch.arange(TOKENS)[None] % 40).logits.sum().backward()
    ours = text_flops(model, tokens_B=tokens_B, response_B=tokens_B)
    assert ours.item() == pytest.approx(counter.get_total_flops(), rel=0.12)
    model.config.num_experts_per_tok = 0
    assert text_flops(model, tokens_B=tokens_B, response_B=tokens_B) is None


def test_work_of_another_kind_of_model_is_not_known():
    mask_BT = torch.ones(1, 3, dtype=torch.long)
    batch = TensorDict({"attention_mask": mask_BT, "response_mask": mask_BT}, batch_size=[1])
    assert flops_of_rows(nn.Linear(2, 2), batch) is None
