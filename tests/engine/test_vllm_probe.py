"""The probe of new weights tells rounding of a deep model in bfloat16 from other weights."""

import math

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from siirl.engine.rollout.vllm.vllm_probe import probe_text
from siirl.engine.rollout.vllm.vllm_settings import (
    PROBE_TOKENS,
    PROBE_TOLERANCE,
    SHORT_PROBE_TOKENS,
)

LAYERS, WIDTH, VOCABULARY = 28, 128, 2048  # as deep as Qwen2.5-7B
LOGIT_DEVIATION = 3.5  # random tokens then have log-probs of -14, as in a trained model


def deep_model():
    torch.manual_seed(2)
    shape = Qwen2Config(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        intermediate_size=2 * WIDTH,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=512,
    )
    model = Qwen2ForCausalLM(shape).eval()
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))
    torch.nn.init.normal_(model.model.embed_tokens.weight)
    torch.nn.init.normal_(model.lm_head.weight, std=LOGIT_DEVIATION / math.sqrt(WIDTH))
    return model.bfloat16()


@torch.no_grad()
def log_probs(model, ids, *, kernel):
    model.set_attn_implementation(kernel)
    ids_1S = torch.tensor([ids])
    hidden_SD = model.model(ids_1S).last_hidden_state[0, :-1]
    logits_SV = hidden_SD.float() @ model.lm_head.weight.float().T
    return torch.log_softmax(logits_SV, dim=-1).gather(-1, ids_1S[0, 1:, None])[:, 0]


def test_rounding_of_a_deep_model_stays_within_the_tolerance_of_the_probe():
    model = deep_model()
    ids = probe_text(vocab_size=VOCABULARY, longest=4024)
    gaps = log_probs(model, ids, kernel="eager") - log_probs(model, ids, kernel="sdpa")
    tolerance = PROBE_TOLERANCE[torch.bfloat16]
    assert abs(float(gaps.mean())) < tolerance / 2
    short = torch.stack([part.mean() for part in gaps.split(SHORT_PROBE_TOKENS)])
    assert float(short.abs().max()) > tolerance  # too few tokens to average over


@pytest.mark.parametrize(
    ("longest", "tokens"), [(4024, PROBE_TOKENS), (128, 127), (17, SHORT_PROBE_TOKENS)]
)
def test_the_probe_is_as_long_as_the_texts_allow(longest, tokens):
    assert len(probe_text(vocab_size=VOCABULARY, longest=longest)) == tokens
