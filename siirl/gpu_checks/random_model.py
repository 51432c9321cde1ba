"""Writes a language model with random weights in the layout of a published one."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

END = "<end>"
CHAT = "{% for message in messages %}{{ message['content'] }} {{ eos_token }} {% endfor %}"


def write_model(folder: Path, shape: dict[str, Any], device: torch.device) -> None:
    """Write random weights in bfloat16, and a tokenizer with a word for each token.

    Args:
        folder: Made if it does not exist.
        shape: Values of config.json of a Qwen2 model.
        device: Device that draws the weights.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        network = Qwen2ForCausalLM._from_config(Qwen2Config(**shape), dtype=torch.bfloat16)
    network.save_pretrained(folder)
    words = {END: 0} | {f"w{number}": number for number in range(1, shape["vocab_size"])}
    made = Tokenizer(models.WordLevel(words, unk_token="w1"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{"eos_token": END, "pad_token": END, "unk_token": "w1"},
        "chat_template": CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
