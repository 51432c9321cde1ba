"""Rows of text of every length for a tiny language model, and a plain scorer: one row at a time,
with whole logits.
"""

from typing import Any

import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, LlamaConfig, PhiConfig, Qwen3Config

from siirl.models.language_model import LanguageModel

VOCABULARY, PAD = 40, 0
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": 1,
}
CONFIGS = {
    "tied": lambda: Qwen3Config(
        **SIZES, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True
    ),
    "separate": lambda: LlamaConfig(**SIZES, tie_word_embeddings=False),
    "biased head": lambda: PhiConfig(**SIZES),
}
# lengths; the third row has no response
PROMPTS, RESPONSES = (5, 1, 3, 7, 2, 4), (4, 6, 0, 1, 3, 2)
TOOL_TOKENS = (
    (0, 1),
    (0, 2),
    (4, 1),
)  # (row, place) of response tokens that the policy did not choose


def tiny_model(
    kind: str = "tied", *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """A model of two blocks with weights that distinguish tokens, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        causal_lm = AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval()
        with torch.no_grad():
            for weight in causal_lm.parameters():
                weight.add_(0.2 * torch.randn_like(weight))
    return LanguageModel(causal_lm.to(dtype))


def text_rows(*, further_left: int = 0, further_right: int = 0, seed: int = 0) -> TensorDict:
    """Six rows with prompts on the left and responses on the right, padded to the longest and
    `further`.
    """
    generator = torch.Generator().manual_seed(seed)
    width_P, width_T = max(PROMPTS) + further_left, max(RESPONSES) + further_right
    ids_BS = torch.full((len(PROMPTS), width_P + width_T), PAD)
    mask_BS = torch.zeros_like(ids_BS)
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        present = slice(width_P - prompt, width_P + response)
        ids_BS[row, present] = torch.randint(
            2, VOCABULARY, (prompt + response,), generator=generator
        )
        mask_BS[row, present] = 1
    response_mask_BT = mask_BS[:, width_P:].clone()
    for row, place in TOOL_TOKENS:
        response_mask_BT[row, place] = 0
    columns = {
        "input_ids": ids_BS,
        "attention_mask": mask_BS,
        "prompts": ids_BS[:, :width_P],
        "responses": ids_BS[:, width_P:],
        "response_mask": response_mask_BT,
        "advantages": torch.randn(len(PROMPTS), 1, generator=generator).expand(-1, width_T)
        * response_mask_BT,
        "old_log_probs": (-3.0 + 0.3 * torch.randn(len(PROMPTS), width_T, generator=generator))
        * response_mask_BT,
    }
    batch = TensorDict(columns, batch_size=[len(PROMPTS)])
    batch["uid"] = [f"{row:03d}" for row in range(len(PROMPTS))]
    return batch


def score_plainly(
    model: LanguageModel, batch: TensorDict, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropy [B, T] by the model's own head and log-softmax, row by row, without any
    padding; 0 at masked tokens.
    """
    log_probs, entropy = [], []
    width_P = batch["input_ids"].shape[1] - batch["responses"].shape[1]
    for row in range(len(batch)):
        present = batch["attention_mask"][row].bool()
        logits = (
            model.causal_lm(input_ids=batch["input_ids"][row, present][None]).logits[0]
            / temperature
        )
        log_p = torch.log_softmax(logits, dim=-1)
        # place of the token that predicts the first response token
        before = int(present[:width_P].sum()) - 1
        own_log_probs, own_entropy = [], []
        for place, kept in enumerate(batch["response_mask"][row].tolist()):
            chosen = log_p[before + place] if kept else None
            zero = logits.sum() * 0
            own_log_probs.append(zero if chosen is None else chosen[batch["responses"][row, place]])
            own_entropy.append(zero if chosen is None else -(chosen.exp() * chosen).sum())
        log_probs.append(torch.stack(own_log_probs))
        entropy.append(torch.stack(own_entropy))
    return torch.stack(log_probs), torch.stack(entropy)
