"""FLOPs of training passes: chunks, texts, shared prompts and adapters."""

import pytest
import torch
from tensordict import TensorDict
from tiny_models import tiny_causal_lm
from torch import nn

from siirl.files.paths import find
from siirl.models.language_model import LanguageModel
from siirl.models.tiny_vla import load_policy, tiny_vla_flops
from siirl.models.training_flops import text_flops, training_flops
from siirl.params.model_args import LoraArguments


def texts(prompts, *, response=3):
    prompts_BP = torch.tensor(prompts)
    there_BS = torch.ones(len(prompts), prompts_BP.shape[1] + response, dtype=torch.long)
    return TensorDict(
        {
            "prompts": prompts_BP,
            "attention_mask": there_BS,
            "response_mask": there_BS[:, -response:],
        },
        batch_size=[len(prompts)],
    )


def language_model(*, shares):
    model = LanguageModel(tiny_causal_lm("tied"))
    model.shares_prompts = shares
    return model


def of(model, tokens, response):
    tokens_B, response_B = (
        torch.tensor([float(n)], dtype=torch.float64) for n in (tokens, response)
    )
    return text_flops(model, tokens_B=tokens_B, response_B=response_B).item()


def test_a_shared_prompt_counts_once_and_only_where_it_is_computed_once():
    rows = texts([[1, 2], [1, 2], [3, 4]])
    alone = language_model(shares=False)
    assert training_flops(alone, rows) == 3 * of(alone, 5, 3)
    assert training_flops(language_model(shares=True), rows) == 3 * of(alone, 5, 3) - of(
        alone, 2, 0
    )


def test_chunks_without_an_executed_token_are_not_work():
    policy = load_policy(find("assets/tiny_vla"))
    mask_BT = torch.zeros(1, 12)
    mask_BT[0, :5] = 1  # of four chunks of three tokens
    batch = TensorDict(
        {
            "response_mask": mask_BT,
            "proprioception": torch.zeros(1, 4, 2),
            "instruction_ids": torch.ones(1, 3, dtype=torch.int64),
        },
        batch_size=[1],
    )
    assert training_flops(policy, batch) == 3 * 2 * tiny_vla_flops(policy)
    policy.lora = LoraArguments(rank=2)
    assert training_flops(policy, batch) == pytest.approx(2 * 2 * tiny_vla_flops(policy))


def test_a_model_of_another_kind_has_no_figure():
    assert training_flops(nn.Linear(2, 2), texts([[1, 2]])) is None
