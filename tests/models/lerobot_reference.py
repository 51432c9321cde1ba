"""What the two `make_reference.py` share: inputs, tokenizers and LeRobot's calls.

A Python with LeRobot imports this file by its folder; ours imports it for the weights.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CAMERAS = ("observation.images.image", "observation.images.image2")


def random_weights(
    state: dict[str, torch.Tensor], *, seed: int, around_0: tuple[str, ...] = ()
) -> dict[str, torch.Tensor]:
    """A weight of each name and shape: matrices of unit gain, norms around 1, other vectors 0.

    Norms with a part of `around_0` in their name are around 0: Gemma's, which add 1.
    """
    generator = np.random.default_rng(seed)
    weights = {}
    for name in sorted(state):
        shape = tuple(state[name].shape)
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 100
        values = generator.standard_normal(shape) / np.sqrt(fan_in)
        is_norm = "norm" in name and name.endswith("weight") and len(shape) == 1
        adds_1 = any(part in name for part in around_0)
        weights[name] = torch.from_numpy((values + (is_norm and not adds_1)).astype(np.float32))
    return weights


def byte_tokenizer(special: Sequence[str]) -> Tokenizer:
    """A tokenizer of bytes, with special tokens before them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: place for place, word in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in special])
    return tokenizer


def libero_features() -> dict[str, Any]:
    """Arguments of a LeRobot config: two cameras, LIBERO's state of 8 numbers and actions of 7."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    image = PolicyFeature(FeatureType.VISUAL, (3, 48, 64))
    return {
        "input_features": {
            **dict.fromkeys(CAMERAS, image),
            "observation.state": PolicyFeature(FeatureType.STATE, (8,)),
        },
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (7,))},
    }


def raw_inputs(*, rows: int) -> dict[str, torch.Tensor]:
    """Observations, noise, actions and times of a batch."""
    generator = torch.Generator().manual_seed(3)
    return {
        "images": torch.randint(0, 256, (rows, 2, 48, 64, 3), generator=generator).byte(),
        "state": torch.randn((rows, 8), generator=generator),
        "noise": torch.randn((rows, 6, 9), generator=generator),
        "actions": torch.randn((rows, 6, 7), generator=generator),
        "time": torch.tensor([0.9, 0.4, 0.1]),
    }


def prepared(before: Any, tensors: dict[str, torch.Tensor], tasks: Sequence[str]) -> dict[str, Any]:
    """The batch that LeRobot's processor makes of raw observations."""
    images = tensors["images"].permute(0, 1, 4, 2, 3).float() / 255
    batch: dict[str, Any] = before(
        {
            **{camera: images[:, place] for place, camera in enumerate(CAMERAS)},
            "observation.state": tensors["state"],
            "task": list(tasks),
        }
    )
    return batch


def sampled(
    policy: Any, before: Any, tensors: dict[str, torch.Tensor], tasks: Sequence[str]
) -> torch.Tensor:
    """Normalised chunks of actions from `noise`."""
    policy.reset()
    batch = prepared(before, tensors, tasks)
    chunks: torch.Tensor = policy.predict_action_chunk(batch, noise=tensors["noise"]).clone()
    return chunks


def write_reference(
    tensors: dict[str, torch.Tensor], folder: Path, *, lerobot: str, tasks: Sequence[str]
) -> None:
    """Write `reference.safetensors` with the versions that computed it."""
    import transformers

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "reference.safetensors",
        metadata={"lerobot": lerobot, **versions, "tasks": json.dumps(list(tasks))},
    )


def write_chunks(
    folder: Path,
    policy: Any,
    *,
    stored: Path,
    tokenizer: Path,
    inputs: Path,
    tasks: Sequence[str],
) -> None:
    """Write the chunks that a policy computes from stored inputs, with its stored processors."""
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.processor.converters import (
        policy_action_to_transition,
        transition_to_policy_action,
    )

    before = PolicyProcessorPipeline.from_pretrained(
        stored,
        "policy_preprocessor.json",
        overrides={"tokenizer_processor": {"tokenizer_name": str(tokenizer)}},
    )
    after = PolicyProcessorPipeline.from_pretrained(
        stored,
        "policy_postprocessor.json",
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    chunks = sampled(policy, before, load_file(inputs), tasks)
    save_file(
        {"sampled": chunks, "unnormalised": torch.stack([after(row) for row in chunks])},
        folder / "chunks.safetensors",
    )


def run(main: Callable[[Path], None], check: Callable[[Path, Path], None]) -> None:
    """The command line of both scripts: FOLDER, and `--check POLICY`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", type=Path)
    flags = parser.parse_args()
    torch.set_num_threads(1)  # sums of several threads differ in their last bit
    if flags.check is None:
        main(flags.folder)
    else:
        check(flags.folder, flags.check)
