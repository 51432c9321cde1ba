"""What tests of SmolVLA, pi0 and pi0.5 share: an environment, inputs, and runs of LeRobot."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from siirl.models.policy_loader import save_policy
from siirl.params.model_args import LoraArguments

WATCHED = "gradient."
"""Begin of a gradient's name in reference.safetensors."""


def robot(*, cameras=2, state=8, actions=7, name="arm") -> EnvSpec:
    """An environment with the spaces of the checkpoints."""
    images = gymnasium.spaces.Box(0, 255, (cameras, 48, 64, 3), np.uint8)
    felt = gymnasium.spaces.Box(-np.inf, np.inf, (state,))
    spaces = gymnasium.spaces.Dict({IMAGES: images, PROPRIOCEPTION: felt})
    box = gymnasium.spaces.Box(-1, 1, (actions,), np.float32)
    return EnvSpec(name, ("only",), spaces, box, 10)


def observed(policy: Any, reference, tasks: Sequence[str]) -> dict[str, torch.Tensor]:
    """The inputs of `forward`, of the reference's raw observations."""
    rows = [
        policy.prepare(images=image.numpy(), proprioception=state.numpy())
        for image, state in zip(reference["images"], reference["state"], strict=True)
    ]
    images, states = zip(*rows, strict=True)
    return {
        "pixel_values": torch.from_numpy(np.stack(images)),
        "proprioception": torch.from_numpy(np.stack(states)),
        "instruction_ids": torch.from_numpy(
            np.stack([policy.tokenize_instruction(task) for task in tasks])
        ),
    }


def require_same_log_probs(policy: Any, observation, distribution: type) -> None:
    """Log-probs and samples of a row are those that it has in the batch."""
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.rand(3, policy.uniforms_per_chunk, generator=generator)
    with torch.no_grad():
        flow = policy(**observation)
        choices = flow.sample(uniforms)
        alone = policy(**{name: part[:1] for name, part in observation.items()})
        log_probs = flow.log_prob(choices)
        assert isinstance(flow, distribution) and policy.distribution is distribution
        assert flow.shape == log_probs.shape == (3, 4 * 7)
        torch.testing.assert_close(alone.log_prob(choices[:1]), log_probs[:1], rtol=0, atol=1e-4)
        torch.testing.assert_close(alone.sample(uniforms[:1]), choices[:1], rtol=0, atol=1e-4)
    assert policy.action_tokenizer.decode(flow.values(choices)[0].numpy()).shape == (4, 7)


def require_merged_adapters(
    policy: Any, observation, *, folder: Path, read: Callable[[Path], Any]
) -> None:
    """Only adapters are trained, and `read` of the saved policy acts as with them."""
    policy.adapt(LoraArguments(rank=2, target_modules=("q_proj", "action_in_proj")), seed=0)
    with torch.no_grad():
        before = policy(**observation).mode()
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.02)
        after = policy(**observation).mode()
        save_policy(policy, folder)
        policy.describe_adapters(folder)
        again = read(folder)(**observation).mode()
    assert (after - before).abs().max() > 0.01
    torch.testing.assert_close(again, after, rtol=1e-4, atol=1e-4)
    assert {name for name, weight in policy.named_parameters() if weight.requires_grad} == {
        name for name, _ in policy.named_parameters() if "lora_" in name
    }


def run_lerobot(script: Path, *words: object, variable: str, version: str) -> None:
    """Run a `make_reference.py` with the Python that `variable` names; skip without one."""
    if variable not in os.environ:
        pytest.skip(
            f"{variable} names no Python with lerobot {version} ({script.parent.name}/{script.name})"
        )
    subprocess.run([os.environ[variable], script, *map(str, words)], check=True)


def require_same_files(folder: Path, expected_folder: Path) -> None:
    """Weights and reference numbers are those of `expected_folder`, up to rounding."""
    for file in ("reference.safetensors", "checkpoint/model.safetensors"):
        found, expected = load_file(folder / file), load_file(expected_folder / file)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)


def require_same_chunks(file: Path, reference) -> None:
    """The chunks that LeRobot wrote are the reference's."""
    chunks = load_file(file)
    for name in ("sampled", "unnormalised"):
        torch.testing.assert_close(chunks[name], reference[name], rtol=1e-5, atol=1e-5)
