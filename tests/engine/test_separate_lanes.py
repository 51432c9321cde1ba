"""Models that do not keep packed rows apart: each row has a lane, and scores as it does alone."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tiny_text import SIZES, score_plainly, text_rows
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV4Config,
    Lfm2Config,
    MambaConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from siirl.engine.actor.packing import pack_rows, padded_groups, prefix_groups_of
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.rollout.hf.hf_engine import HFEngine
from siirl.engine.training.batch_cuts import micro_batch_rows
from siirl.errors import ConfigError
from siirl.models.architecture_check import try_out
from siirl.models.language_model import LanguageModel

TEMPERATURE = 1.3
HEADS = {"num_key_value_heads": 1, "head_dim": 8}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
CONFIGS: dict[str, Any] = {
    "Qwen3.5": lambda: Qwen3_5TextConfig(**SIZES, **HEADS, **LINEAR),
    "Qwen3-Next": lambda: Qwen3NextConfig(
        **SIZES, **HEADS, **LINEAR, **EXPERTS, shared_expert_intermediate_size=8
    ),
    "LFM2": lambda: Lfm2Config(**SIZES, **HEADS, layer_types=["conv", "full_attention"]),
    "Mamba": lambda: MambaConfig(
        vocab_size=SIZES["vocab_size"], hidden_size=16, num_hidden_layers=2, state_size=4
    ),
    "Bloom": lambda: BloomConfig(
        vocab_size=SIZES["vocab_size"], hidden_size=16, n_layer=2, n_head=2
    ),
    "DeepSeek V4": lambda: DeepseekV4Config(
        **SIZES, **HEADS, num_local_experts=2, num_experts_per_tok=1, moe_intermediate_size=8
    ),
}


def model_of(kind: str) -> LanguageModel:
    """A tiny model with weights that distinguish tokens, as it is loaded."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        causal_lm = AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval()
        with torch.no_grad():
            for weight in causal_lm.parameters():
                weight.add_(0.2 * torch.randn_like(weight))
    model = LanguageModel(causal_lm)
    try_out(model, kind)
    return model


@pytest.mark.parametrize("kind", CONFIGS)
def test_rows_together_have_the_scores_and_the_gradient_of_each_alone(kind: str) -> None:
    model, rows = model_of(kind), text_rows(further_left=2, further_right=3)
    assert not model.packs
    expected_BT, _ = score_plainly(model, rows, TEMPERATURE)
    (expected_BT * rows["advantages"]).sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    found_BT = text_scorer(model, rows, TEMPERATURE).log_probs_BT
    (found_BT * rows["advantages"]).sum().backward()
    torch.testing.assert_close(found_BT, expected_BT, atol=1e-5, rtol=0)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], atol=1e-4, rtol=1e-4)


def test_rows_that_would_fit_into_one_lane_have_one_each() -> None:
    rows = text_rows()
    lanes = [
        len(pack_rows(rows, width=1000, share_prompts=False, alone=alone).input_ids_LS)
        for alone in (False, True)
    ]
    assert lanes == [1, len(rows)]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(30, 90))
def test_a_micro_batch_fits_the_budget_with_its_padding(lengths: list[int], budget: int) -> None:
    mask_BS = (torch.arange(30) < torch.tensor(lengths)[:, None]).long()
    batch = TensorDict({"attention_mask": mask_BS}, batch_size=[len(lengths)])
    parts = micro_batch_rows(batch, rows=1, tokens=budget, prefix_groups=padded_groups)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        assert len(part) * max(lengths[row] for row in part) <= budget


def test_a_row_above_the_budget_is_refused() -> None:
    batch = TensorDict({"attention_mask": torch.ones(2, 9, dtype=torch.long)}, batch_size=[2])
    with pytest.raises(ConfigError, match="micro_batch_tokens"):
        micro_batch_rows(batch, rows=1, tokens=8, prefix_groups=padded_groups)


def test_the_engine_that_packs_keys_and_values_refuses_them() -> None:
    model = model_of("LFM2")
    assert prefix_groups_of(model) is padded_groups
    with pytest.raises(ConfigError, match=r"Lfm2ForCausalLM, whose layers .* set rollout=vllm"):
        HFEngine(model=model, tokenizer=None)  # type: ignore[arg-type]
