"""Models of published shapes with random weights, batches for them, and small forms for a CPU."""

# B row, C chunk, T token

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from envs.libero.openvla_conventions import Quantiles
from siirl.gpu_checks.check import Trial
from siirl.models import openvla_vision
from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.language_model import LanguageModel, recompute_activations
from siirl.models.openvla_oft import OpenVLAOFT
from siirl.models.openvla_policy import OpenVLATokenizer, Parts
from siirl.models.openvla_vision import EncoderShape
from siirl.models.policy import Policy
from siirl.params.model_args import LoraArguments

QUESTION = 28
"""Tokens of a LIBERO question: about the length of the published prompt with an instruction."""
ACTIONS = 7
NUMBERS = 8
BINS = 256
PAD = 32000
# config.json of https://huggingface.co/openvla/openvla-7b: Llama-2 7B with 64 further tokens.
LLAMA_7B: dict[str, Any] = {
    "vocab_size": 32064,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
ENCODERS_7B = ("vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224")
# config.json of https://huggingface.co/Qwen/Qwen2.5-7B
QWEN_7B: dict[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
# config.json of https://huggingface.co/Qwen/Qwen2.5-1.5B
QWEN_1_5B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
SMALL_ENCODERS = {
    "small_dino": EncoderShape(
        width=8, blocks=3, heads=2, hidden=12, patch=56, registers=2, scaled=True
    ),
    "small_siglip": EncoderShape(width=4, blocks=3, heads=1, hidden=8, patch=56),
}


def encoders_of(trial: Trial) -> tuple[str, ...]:
    """Names of the image encoders of `openvla`."""
    return ENCODERS_7B if trial.on_gpu else tuple(SMALL_ENCODERS)


def openvla_config(trial: Trial) -> dict[str, Any]:
    """Values of the config.json of OpenVLA-OFT 7B; small on a CPU."""
    openvla_vision.ENCODERS.update(SMALL_ENCODERS)  # of this process, which does one check
    text = LLAMA_7B if trial.on_gpu else {**SMALL, "vocab_size": 32064}
    return {
        "text_config": {**text, "pad_token_id": PAD},
        "timm_model_ids": list(encoders_of(trial)),
        "pad_token_id": PAD,
    }


def openvla(trial: Trial, *, recompute: bool = False) -> OpenVLAOFT:
    """OpenVLA-OFT 7B in float32 on the device; small on a CPU."""
    ranges = Quantiles(np.zeros(NUMBERS), np.ones(NUMBERS), np.ones(NUMBERS, bool))
    of_actions = Quantiles(np.zeros(ACTIONS), np.ones(ACTIONS), np.ones(ACTIONS, bool))
    with torch.device(trial.device):
        parts = Parts(
            config=openvla_config(trial),
            preprocessor={"means": [[0.5] * 3] * 2, "stds": [[0.5] * 3] * 2},
            tokenizer=Tokenizer(WordLevel({"?": 0}, unk_token="?")),
            question_length=QUESTION,
            recompute=recompute,
            folder=Path(),
        )
        tokens = OpenVLATokenizer(
            bins=BINS,
            low=(-1.0,) * ACTIONS,
            high=(1.0,) * ACTIONS,
            quantiles=of_actions,
            vocabulary=PAD,
        )
        policy = OpenVLAOFT(parts, action_tokenizer=tokens, proprioception=ranges, images=1)
    return policy.eval().to(trial.device)


def decoder_config(trial: Trial) -> dict[str, Any]:
    """Values of the config.json of Qwen2.5-7B; small on a CPU."""
    return {"model_type": "qwen2", **(QWEN_7B if trial.on_gpu else {**SMALL, "vocab_size": 300})}


def language_model(
    trial: Trial, *, lora: LoraArguments | None = None, recompute: bool = True
) -> LanguageModel:
    """Qwen2.5-7B on the device, small on a CPU.

    Args:
        trial: The check.
        lora: Adapters to train; of rank 0: all weights are trained. None: nothing is trained.
        recompute: Recompute activations in training.

    Weights have the dtype of the passes for acting, and float32 for training.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from siirl.models.adapters import add_adapters

    dtype = trial.dtype if lora is None else torch.float32
    config = Qwen2Config.from_dict(decoder_config(trial))
    with torch.device(trial.device):
        causal_lm = Qwen2ForCausalLM._from_config(config, dtype=dtype).eval()
    adapts = lora is not None and lora.rank > 0
    if lora is not None and adapts:
        add_adapters(causal_lm, lora)
    model = LanguageModel(causal_lm.to(trial.device), lora=lora if adapts else None).eval()
    if lora is not None and recompute:
        recompute_activations(model)
    return model


def observations(policy: Policy, rows: int, *, shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Random inputs of `Policy.forward` for `rows` observations.

    Args:
        policy: Determines the length of questions.
        rows: Number of observations (N).
        shape: Shape of the images of an observation.
    """
    length = getattr(policy, "question_length", QUESTION)
    return {
        "pixel_values": torch.randint(256, (rows, *shape), dtype=torch.uint8),
        "proprioception": 2 * torch.rand(rows, NUMBERS) - 1,
        "instruction_ids": torch.randint(1, 200, (rows, length)),
    }


def trajectories(
    policy: Policy, *, rows: int, chunks: int, shape: tuple[int, ...], numbers: int = NUMBERS
) -> TensorDict:
    """Random episodes of `chunks` whole chunks, for the scorer of VLA policies with tokens."""
    tokenizer = policy.action_tokenizer
    assert isinstance(tokenizer, ActionTokenizer)
    tokens = policy.chunk_length * tokenizer.dimensions
    length = observations(policy, 1, shape=shape)["instruction_ids"].shape[1]
    batch = TensorDict(
        {
            "pixel_values": torch.randint(256, (rows, chunks, *shape), dtype=torch.uint8),
            "proprioception": 2 * torch.rand(rows, chunks, numbers) - 1,
            "instruction_ids": torch.randint(1, 200, (rows, length)),
            "responses": torch.randint(tokenizer.bins, (rows, chunks * tokens)),
            "response_mask": torch.ones(rows, chunks * tokens),
            "advantages": torch.randn(rows, 1).expand(-1, chunks * tokens).clone(),
        },
        batch_size=[rows],
    )
    return _named(batch)


def texts(prompts: list[list[int]], responses: list[list[int]], *, pad: int = 0) -> TensorDict:
    """Rows of text as the text scorer reads them: prompts left, responses right."""
    width_P, width_T = max(map(len, prompts)), max(map(len, responses))
    ids_BS = torch.full((len(prompts), width_P + width_T), pad)
    mask_BS = torch.zeros_like(ids_BS)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        there = slice(width_P - len(prompt), width_P + len(response))
        ids_BS[row, there] = torch.tensor(prompt + response)
        mask_BS[row, there] = 1
    columns = {
        "input_ids": ids_BS,
        "attention_mask": mask_BS,
        "prompts": ids_BS[:, :width_P],
        "responses": ids_BS[:, width_P:],
        "response_mask": mask_BS[:, width_P:].clone(),
        "advantages": torch.randn(len(prompts), 1) * mask_BS[:, width_P:],
    }
    return _named(TensorDict(columns, batch_size=[len(prompts)]))


def _named(batch: TensorDict) -> TensorDict:
    batch["policy_version"] = torch.zeros(len(batch), dtype=torch.long)
    batch["uid"] = [f"{row:03d}" for row in range(len(batch))]
    return batch
