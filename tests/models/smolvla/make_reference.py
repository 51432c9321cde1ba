"""Makes the tiny SmolVLA checkpoint and the reference numbers beside this file, with LeRobot itself.

    python3.11 -m venv lerobot-env
    lerobot-env/bin/pip install 'lerobot[smolvla]==0.4.4'
    lerobot-env/bin/python tests/models/smolvla/make_reference.py FOLDER
    lerobot-env/bin/python tests/models/smolvla/make_reference.py FOLDER --check POLICY

`checkpoint/` is what LeRobot saves: a policy of random weights in the published types (bfloat16, and
float32 for the projections of the action expert), with its processors. `checkpoint/vlm/` holds the
two files of a vision-language model that LeRobot reads from the Hub. `reference.safetensors` holds
inputs, and what LeRobot computes from them in float32: tokens, velocities, losses, gradients and
action chunks. `--check` reads a policy folder instead, and writes the chunks of the same inputs to
FOLDER/chunks.safetensors. Of other configurations only a chunk is kept (`variants.py` beside this file).
"""

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.smolvla import smolvlm_with_expert
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors
from transformers import PreTrainedTokenizerFast, SmolVLMConfig
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings
from variants import VARIANTS, published

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

PUBLISHED = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
TASKS = ["pick up the bowl", "open the top drawer and put the bowl inside", "push the plate\n"]
VLM = {
    "scale_factor": 2,
    "tie_word_embeddings": False,
    "image_token_id": 261,
    "pad_token_id": 2,
    "vocab_size": 264,
    "text_config": {
        "model_type": "llama",
        "vocab_size": 264,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000,
        "pad_token_id": 2,
        "tie_word_embeddings": False,
    },
    "vision_config": {
        "model_type": "smolvlm_vision",
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    },
}
SIZES = {
    "chunk_size": 6,
    "n_action_steps": 4,
    "max_state_dim": 10,
    "max_action_dim": 9,
    "resize_imgs_with_padding": (32, 32),
    "num_steps": 5,
    "num_vlm_layers": 4,
    "tokenizer_max_length": 48,
    "pad_language_to": "max_length",
    "device": "cpu",
    "load_vlm_weights": False,
}
WATCHED = (
    "model.state_proj.weight",
    "model.action_in_proj.weight",
    "model.vlm_with_expert.lm_expert.layers.0.self_attn.k_proj.weight",
    "model.vlm_with_expert.lm_expert.layers.1.self_attn.v_proj.weight",
    "model.vlm_with_expert.lm_expert.layers.3.mlp.gate_proj.weight",
)
"""Weights whose gradient is kept."""


def embed_patches(self, pixel_values, patch_attention_mask) -> torch.Tensor:
    """Patches with their positions, in order.

    transformers 4.57 multiplies positions by 1 - 1e-6 before it sorts them into buckets, so that in
    float32 all but the first are one too low. In bfloat16, the type in which LeRobot trains, the
    factor is rounded to 1; transformers 5 computes the same in both.
    """
    patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
    return patches + self.position_embedding.weight


SmolVLMVisionEmbeddings.forward = embed_patches


def main(folder: Path) -> None:
    """Write the folder."""
    checkpoint = folder / "checkpoint"
    write_vlm(checkpoint / "vlm")
    config = make_config(checkpoint / "vlm")
    policy = make_policy(config, checkpoint / "vlm", seed=0)
    statistics = make_statistics()
    before, after = make_smolvla_pre_post_processors(config, statistics)
    tensors = numbers(policy.float(), before, after)
    for name, changes in VARIANTS.items():
        changed = dataclasses.replace(config, **changes)
        other = make_policy(changed, checkpoint / "vlm", seed=1).float()
        tensors[f"{name}.actions"] = sampled(other, before, tensors, TASKS)

    types = {name: tensor.dtype for name, tensor in published(policy.state_dict()).items()}
    for name, weight in policy.named_parameters():
        weight.data = weight.data.to(types[name])
    config.vlm_model_name = PUBLISHED
    policy.config = config
    policy.save_pretrained(checkpoint)
    step = before.steps[3]
    step.tokenizer_name, step.tokenizer = PUBLISHED, None
    before.save_pretrained(checkpoint)
    after.save_pretrained(checkpoint)
    write_reference(tensors, folder, lerobot="0.4.4", tasks=TASKS)


def write_vlm(folder: Path) -> None:
    """config.json, and a tokenizer of bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = SmolVLMConfig(**VLM).to_dict()
    (folder / "config.json").write_text(json.dumps({**VLM, "model_type": config["model_type"]}))
    tokenizer = byte_tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|im_end|>", model_max_length=8192
    ).save_pretrained(folder)
    (folder / "special_tokens_map.json").unlink()


def make_config(vlm: Path) -> SmolVLAConfig:
    """LIBERO's features in small sizes."""
    return SmolVLAConfig(**SIZES, vlm_model_name=str(vlm), **libero_features())


def make_policy(config: SmolVLAConfig, vlm: Path, *, seed: int) -> SmolVLAPolicy:
    """LeRobot's policy with `random_weights`, rounded to the published types."""
    stand_in_for_the_processor()
    policy = SmolVLAPolicy(config).eval()
    weights = published(random_weights(policy.state_dict(), seed=seed))
    policy.load_state_dict(weights)
    return policy


def stand_in_for_the_processor() -> None:
    """LeRobot reads a processor of images, and uses two of its token ids for settings not here."""
    special = SimpleNamespace(fake_image_token_id=1, global_image_token_id=1)
    smolvlm_with_expert.AutoProcessor = SimpleNamespace(
        from_pretrained=lambda name: SimpleNamespace(tokenizer=special)
    )


def make_statistics() -> dict[str, dict[str, torch.Tensor]]:
    """Means and deviations of state and action."""
    generator = torch.Generator().manual_seed(2)
    return {
        name: {
            "mean": torch.randn(size, generator=generator) * 0.3,
            "std": torch.rand(size, generator=generator) * 0.5 + 0.2,
        }
        for name, size in (("observation.state", 8), ("action", 7))
    }


def numbers(policy: SmolVLAPolicy, before, after) -> dict[str, torch.Tensor]:
    """Inputs and LeRobot's outputs, by name."""
    tensors = raw_inputs(rows=len(TASKS))
    batch = prepared(before, tensors, TASKS)
    tensors["tokens"] = batch["observation.language.tokens"]
    tensors["mask"] = batch["observation.language.attention_mask"]
    tensors["normalised_state"] = batch["observation.state"]
    sampled_actions = sampled(policy, before, tensors, TASKS)
    tensors["sampled"] = sampled_actions
    tensors["unnormalised"] = torch.stack([after(row) for row in sampled_actions])

    batch["action"] = tensors["actions"]
    images, masks = policy.prepare_images(batch)
    losses = policy.model(
        images,
        masks,
        batch["observation.language.tokens"],
        batch["observation.language.attention_mask"],
        policy.prepare_state(batch),
        policy.prepare_action(batch),
        tensors["noise"],
        tensors["time"],
    )
    tensors["losses"] = losses.detach()
    for weight in policy.parameters():
        weight.requires_grad_(True)
    loss, _ = policy(batch, noise=tensors["noise"], time=tensors["time"])
    loss.backward()
    weights = dict(policy.named_parameters())
    tensors |= {f"gradient.{name}": weights[name].grad for name in WATCHED}
    policy.zero_grad()
    return tensors


def check(folder: Path, policy: Path) -> None:
    """Write the chunks of a policy that siirl exported."""
    config = PreTrainedConfig.from_pretrained(policy)
    config.vlm_model_name = str(policy / "vlm")
    stand_in_for_the_processor()
    read = SmolVLAPolicy.from_pretrained(policy, config=config, strict=True).float()
    write_chunks(
        folder,
        read,
        stored=policy,
        tokenizer=policy / "vlm",
        inputs=Path(__file__).parent / "reference.safetensors",
        tasks=TASKS,
    )


if __name__ == "__main__":
    run(main, check)
