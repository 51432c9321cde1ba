"""Makes tiny checkpoints of pi0 and pi0.5 and reference numbers beside this file, with LeRobot itself.

    python3.12 -m venv lerobot-env
    lerobot-env/bin/pip install 'lerobot[pi]==0.6.1'
    lerobot-env/bin/python tests/models/pi/make_reference.py FOLDER
    lerobot-env/bin/python tests/models/pi/make_reference.py FOLDER --check POLICY

FOLDER gets `pi0/` and `pi05/`. `checkpoint/` in them is what LeRobot saves: a policy of random weights
with its processors, and the tokenizer, which LeRobot reads from the Hub. `reference.safetensors`
holds inputs, and what LeRobot computes from them in float32: tokens, losses, gradients and action
chunks. `--check` reads a policy folder instead, and writes the chunks of the same inputs to
FOLDER/chunks.safetensors.

LeRobot has two sizes of each transformer, by name, and one image encoder; this script makes them small.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.pi0 import modeling_pi0, processor_pi0
from lerobot.policies.pi0.configuration_pi0 import PI0Config
from lerobot.policies.pi05 import modeling_pi05, processor_pi05
from lerobot.policies.pi05.configuration_pi05 import PI05Config
from lerobot.processor import TokenizerProcessorStep
from safetensors.torch import load_file
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

sys.path.append(str(Path(__file__).parents[1]))
from lerobot_reference import (
    byte_tokenizer,
    libero_features,
    prepared,
    random_weights,
    raw_inputs,
    run,
    sampled,
    write_chunks,
    write_reference,
)

PUBLISHED = "google/paligemma-3b-pt-224"
TASKS = ["pick up the bowl", "open the top_drawer and put the bowl inside", "push the plate\n"]
VOCABULARY = 262
GEMMA = {
    "gemma_2b": {"width": 16, "depth": 3, "mlp_dim": 24, "num_heads": 8},
    "gemma_300m": {"width": 8, "depth": 3, "mlp_dim": 12, "num_heads": 8},
}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "patch_size": 8}
SIZES = {
    "chunk_size": 6,
    "n_action_steps": 4,
    "max_state_dim": 10,
    "max_action_dim": 9,
    "image_resolution": (32, 32),
    "num_inference_steps": 5,
    "device": "cpu",
}
EXPERT = "model.paligemma_with_expert.gemma_expert.model."
PALIGEMMA = "model.paligemma_with_expert.paligemma.model."


@dataclass(frozen=True)
class Kind:
    """One of the two policies."""

    config: type[PreTrainedConfig]
    modeling: ModuleType
    policy: type
    processing: ModuleType
    processors: str
    tokens: int
    statistics: tuple[str, str]
    watched: tuple[str, ...]
    """Weights whose gradient is kept."""


KINDS = {
    "pi0": Kind(
        PI0Config,
        modeling_pi0,
        modeling_pi0.PI0Policy,
        processor_pi0,
        "make_pi0_pre_post_processors",
        48,
        ("mean", "std"),
        (
            "model.state_proj.weight",
            "model.action_in_proj.weight",
            f"{EXPERT}layers.0.self_attn.k_proj.weight",
            f"{EXPERT}layers.2.mlp.gate_proj.weight",
            f"{PALIGEMMA}language_model.layers.1.self_attn.q_proj.weight",
            f"{PALIGEMMA}language_model.embed_tokens.weight",
        ),
    ),
    "pi05": Kind(
        PI05Config,
        modeling_pi05,
        modeling_pi05.PI05Policy,
        processor_pi05,
        "make_pi05_pre_post_processors",
        112,
        ("q01", "q99"),
        (
            "model.time_mlp_in.weight",
            "model.action_in_proj.weight",
            f"{EXPERT}layers.0.input_layernorm.dense.weight",
            f"{EXPERT}norm.dense.bias",
            f"{PALIGEMMA}language_model.layers.1.self_attn.q_proj.weight",
            f"{PALIGEMMA}vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
        ),
    ),
}


def main(folder: Path) -> None:
    """Write the folder."""
    write_tokenizer(folder / "tokenizer")
    for name, kind in KINDS.items():
        make_small(kind, tokenizer=folder / "tokenizer")
        write(folder / name, kind, tokenizer=folder / "tokenizer")


def write(folder: Path, kind: Kind, *, tokenizer: Path) -> None:
    """Write a policy and its numbers."""
    config = make_config(kind)
    policy = kind.policy(config).eval()
    gemma = ("language_model.", "gemma_expert.")
    policy.load_state_dict(random_weights(policy.state_dict(), seed=0, around_0=gemma))
    make = getattr(kind.processing, kind.processors)
    before, after = make(config, make_statistics(kind))
    tensors = numbers(kind, policy, before, after)

    checkpoint = folder / "checkpoint"
    policy.save_pretrained(checkpoint)
    for step in before.steps:
        if isinstance(step, TokenizerProcessorStep):
            step.tokenizer_name, step.tokenizer = PUBLISHED, None
    before.save_pretrained(checkpoint)
    after.save_pretrained(checkpoint)
    (checkpoint / "tokenizer.json").write_text((tokenizer / "tokenizer.json").read_text())
    write_reference(tensors, folder, lerobot="0.6.1", tasks=TASKS)


def make_small(kind: Kind, *, tokenizer: Path) -> None:
    """Replace the sizes that LeRobot knows by name, and the name of its tokenizer."""
    modeling = kind.modeling
    paligemma = modeling.PaliGemmaForConditionalGenerationWithPiGemma
    expert = modeling.PiGemmaForCausalLM

    def small_paligemma(config: Any) -> Any:
        for name, size in VISION.items():
            setattr(config.vision_config, name, size)
        config.vision_config.projection_dim = config.text_config.hidden_size
        config.text_config.vocab_size = VOCABULARY
        return paligemma(config)

    def small_expert(config: Any) -> Any:
        config.vocab_size = VOCABULARY
        return expert(config)

    def small_gemma(variant: str) -> Any:
        return modeling.GemmaConfig(**GEMMA[variant], num_kv_heads=1, head_dim=4)

    def tokenizer_step(**settings: Any) -> TokenizerProcessorStep:
        return TokenizerProcessorStep(**{**settings, "tokenizer_name": str(tokenizer)})

    modeling.PaliGemmaForConditionalGenerationWithPiGemma = small_paligemma
    modeling.PiGemmaForCausalLM = small_expert
    modeling.get_gemma_config = small_gemma
    kind.processing.TokenizerProcessorStep = tokenizer_step


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes with Gemma's special tokens."""
    tokenizer = byte_tokenizer(["<pad>", "<eos>", "<bos>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", model_max_length=8192
    ).save_pretrained(folder)


def make_config(kind: Kind) -> PreTrainedConfig:
    """LIBERO's features in small sizes."""
    return kind.config(**SIZES, tokenizer_max_length=kind.tokens, **libero_features())


def make_statistics(kind: Kind) -> dict[str, dict[str, torch.Tensor]]:
    """Means and deviations, or quantiles, of state and action."""
    generator = torch.Generator().manual_seed(2)
    statistics = {}
    for name, size in (("observation.state", 8), ("action", 7)):
        first = torch.randn(size, generator=generator) * 0.3
        second = torch.rand(size, generator=generator) * 0.5 + 0.2
        if kind.statistics[1] == "q99":
            first, second = first - 1.5 * second, first + 1.5 * second
        statistics[name] = dict(zip(kind.statistics, (first, second), strict=True))
    return statistics


def numbers(kind: Kind, policy: Any, before: Any, after: Any) -> dict[str, torch.Tensor]:
    """Inputs and LeRobot's outputs, by name."""
    tensors = raw_inputs(rows=len(TASKS))
    batch = prepared(before, tensors, TASKS)
    tensors["tokens"] = batch["observation.language.tokens"]
    tensors["mask"] = batch["observation.language.attention_mask"]
    tensors["normalised_state"] = batch["observation.state"]
    tensors["sampled"] = sampled(policy, before, tensors, TASKS)
    tensors["unnormalised"] = torch.stack([after(row) for row in tensors["sampled"]])

    batch["action"] = tensors["actions"]
    images, masks = policy._preprocess_images(batch)
    state = (policy.prepare_state(batch),) if kind.config is PI0Config else ()
    losses = policy.model(
        images,
        masks,
        tensors["tokens"],
        tensors["mask"],
        *state,
        policy.prepare_action(batch),
        tensors["noise"],
        tensors["time"],
    )
    tensors["losses"] = losses.detach()
    losses.mean().backward()
    weights = dict(policy.named_parameters())
    tensors |= {f"gradient.{name}": weights[name].grad for name in kind.watched}
    policy.zero_grad()
    return tensors


def check(folder: Path, policy: Path) -> None:
    """Write the chunks of a policy that siirl exported."""
    write_tokenizer(folder / "tokenizer")
    config = PreTrainedConfig.from_pretrained(policy)
    kind = KINDS[config.type]
    make_small(kind, tokenizer=folder / "tokenizer")
    stored = load_file(policy / "model.safetensors")
    read = kind.policy.from_pretrained(policy, config=config, strict=True).eval()
    embedding = read.state_dict()[f"{PALIGEMMA}language_model.embed_tokens.weight"]
    head = stored["model.paligemma_with_expert.paligemma.lm_head.weight"]
    assert torch.equal(embedding, head), "LeRobot did not read the weights"
    write_chunks(
        folder,
        read,
        stored=policy,
        tokenizer=folder / "tokenizer",
        inputs=Path(__file__).parent / config.type / "reference.safetensors",
        tasks=TASKS,
    )


if __name__ == "__main__":
    run(main, check)
