"""Configurations of published models, jobs that train them, and files of their weights."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from siirl.errors import SiirlError
from siirl.gpu_checks.shapes import ENCODERS_7B, LLAMA_7B, QWEN_7B
from siirl.params import SiiRLArguments
from siirl.params.parser import parse_config
from siirl.params.sizes import GIB
from siirl.preflight.machine import Gpu
from tests.preflight.camera_spec import SPEC

LIBERO_10 = dataclasses.replace(SPEC, name="libero", max_episode_steps=520)
QWEN = {"model_type": "qwen2", **QWEN_7B}

# config.json of https://huggingface.co/Qwen/Qwen3-8B
QWEN3 = {
    **{"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "head_dim": 128},
    **{"intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "tie_word_embeddings": False},
}

OPENVLA = {"text_config": LLAMA_7B, "timm_model_ids": list(ENCODERS_7B)}

EIGHTY_GB = Gpu(79 * GIB)


def libero(folder: Path, *words: str, trainer: str) -> SiiRLArguments:
    return parse_config(
        [
            *("pipeline=embodied_srpo", "env=libero", "env.suite=10", "model=openvla_oft"),
            *(f"trainer={trainer}", f"actor_rollout_ref.model.path={folder}", *words),
        ]
    )


def text(folder: Path, *words: str) -> SiiRLArguments:
    return parse_config(
        [
            *("pipeline=grpo", "env=math", "model=causal_lm", "rollout=vllm", "trainer=gpus_text"),
            *(f"actor_rollout_ref.model.path={folder}", *words),
        ]
    )


def causal_lm(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    configured = AutoConfig.for_model(**config, attn_implementation="sdpa")
    return AutoModelForCausalLM.from_config(configured)


def saved_by(module: torch.nn.Module, forward: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes of the tensors that a forward pass of `module` saves, weights left out; its output."""
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, torch.Tensor] = {}  # keeps storages alive, so that addresses stay unique

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    size = sum(
        tensor.untyped_storage().nbytes()
        for address, tensor in kept.items()
        if address not in weights
    )
    return size, output


def remedies(problem: SiirlError) -> list[str]:
    """The settings that a refusal names, as on the command line."""
    told = re.search(r"These settings fit: (.*)\.$", str(problem))
    assert told is not None, str(problem)
    return told[1].split("; or ")


ROLLOUT, ADAPTERS = "actor_rollout_ref.rollout", "actor_rollout_ref.model.lora.rank=32"

FEW_TOKENS = "actor_rollout_ref.actor.micro_batch_tokens=4024"

ONE_GPU = "trainer.n_gpus_per_node=1"

HF = (f"{ROLLOUT}.name=hf", f"{ROLLOUT}.mode=sync", ONE_GPU)


EXPERTS = {**QWEN, "model_type": "qwen3_moe"}

BILLION = 10**9


def sparse(folder: Path, **billions: float) -> Path:
    """Write weights of these names and sizes into `folder`, in bfloat16, without taking room."""
    entries, end = {}, 0
    for name, number in billions.items():
        count = int(number * BILLION)
        offsets = [end, end + 2 * count]
        entries[name] = {"dtype": "BF16", "shape": [count], "data_offsets": offsets}
        end += 2 * count
    header = json.dumps(entries).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with file.open("r+b") as stream:
        stream.truncate(8 + len(header) + end)
    return folder
