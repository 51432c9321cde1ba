"""Backbone of the shipped tiny policies: maps image, instruction and proprioception to features.

It is a convolutional encoder; the instruction modulates its features (FiLM). A small vision
transformer was several times slower to train on a CPU. Inputs that an environment lacks are left
out: on state-based Gymnasium environments a policy is a plain MLP. There is no dropout and there
are no batch statistics, because rollout and training must compute the same log-probs. The words of
an instruction are hashed into a fixed number of buckets, without a vocabulary file: the few dozen
sentences of the shipped tasks do not collide. Left out: heads (`siirl.models.tiny_vla`,
`siirl.models.tiny_flow_vla`).
"""

# N observation, C camera, P proprioception value, L instruction word, D feature

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from siirl.errors import CheckpointError
from siirl.files.documents import read_object
from siirl.files.weight_files import CONFIG_FILE
from siirl.models.policy import Policy
from siirl.params.build import as_text

if TYPE_CHECKING:
    import gymnasium

PADDING = 0  # id after the last word of an instruction


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    """Shape of a tiny policy; saved next to its weights."""

    chunk_length: int = 8  # OpenVLA-OFT's chunk on LIBERO
    image_shape: tuple[int, int, int] | None = None
    """(cameras, height, width); None for an environment without images."""
    proprioception_size: int = 0
    width: int = 256
    instruction_length: int = 24
    """Words; the longest instruction of LIBERO has 19."""
    instruction_buckets: int = 512

    def to_json(self) -> dict:
        """Plain values for config.json."""
        return dataclasses.asdict(self)

    def option(self, name: str) -> Any:
        """The value of a keyword argument of `for_env`."""
        return getattr(self, name)


def require_sizes(sizes: Mapping[str, tuple[Any, int]]) -> None:
    """Raise ValueError unless each value from the command line is an integer with its minimum.

    `sizes` has (value, minimum) by name.
    """
    for name, (value, least) in sizes.items():
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r} must be an integer of at least {least}.")


def observed_sizes(spec: EnvSpec) -> dict[str, Any]:
    """`image_shape` and `proprioception_size` of an environment.

    Raises:
        ValueError: An observation space without images and without proprioception, or with a
            proprioception of no number.
    """
    import gymnasium

    spaces = (
        spec.observation_space.spaces
        if isinstance(spec.observation_space, gymnasium.spaces.Dict)
        else {}
    )
    if IMAGES not in spaces and PROPRIOCEPTION not in spaces:
        raise ValueError(
            f"Environment {spec.name!r} has neither {IMAGES!r} nor {PROPRIOCEPTION!r} in its "
            f"observations: {spec.observation_space}."
        )
    if PROPRIOCEPTION in spaces and not np.prod(_shape(spaces[PROPRIOCEPTION])):
        raise ValueError(
            f"Environment {spec.name!r} has {PROPRIOCEPTION!r} without a number: "
            f"{spaces[PROPRIOCEPTION]}. Leave it out of its observations."
        )
    return {
        "image_shape": _shape(spaces[IMAGES])[:3] if IMAGES in spaces else None,
        "proprioception_size": int(np.prod(_shape(spaces[PROPRIOCEPTION])))
        if PROPRIOCEPTION in spaces
        else 0,
    }


def _shape(space: gymnasium.Space[Any]) -> Any:
    if space.shape is None:
        raise ValueError(
            f"An observation of the space {space} has no shape, so no policy can be made for it."
        )
    return space.shape


class TinyPolicy(Policy):
    """A policy with the backbone and without a head.

    A subclass sets `name`, `config_class` and `action_tokenizer`, adds its head after
    `super().__init__`, and implements `forward` and `drop_head`.
    """

    name: ClassVar[str]
    """Name of the class in config.json and in `siirl.params.policies.POLICIES`."""
    config_class: ClassVar[type[Any]]
    """A `TinyConfig` with `for_env(spec, **options)` and `from_json(values)`."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.chunk_length = config.chunk_length
        self.feature_size = self.build_backbone(config)

    def build_backbone(self, config: TinyConfig) -> int:
        """Make the layers before the head; returns D."""
        width = config.width
        self.words = nn.Embedding(config.instruction_buckets, width, padding_idx=PADDING)
        inputs = width
        if config.image_shape is not None:
            self.vision = ConvEncoder(
                cameras=config.image_shape[0],
                size=config.image_shape[1:],
                condition=width,
                width=width,
            )
            inputs += width
        if config.proprioception_size:
            self.proprioception = nn.Sequential(
                nn.Linear(config.proprioception_size, width), nn.ReLU()
            )
            inputs += width
        self.trunk = nn.Sequential(
            nn.Linear(inputs, 2 * width), nn.ReLU(), nn.Linear(2 * width, 2 * width), nn.ReLU()
        )
        return 2 * width

    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """Hashed words, int64 [L]."""
        return hash_words(
            text, length=self.config.instruction_length, buckets=self.config.instruction_buckets
        )

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The last hidden layer [N, D]; see `Policy.features`."""
        condition_NW = mean_of_words(self.words, instruction_ids)
        features = [condition_NW]
        if self.config.image_shape is not None:
            features.append(self.vision(pixel_values, condition_NW))
        if self.config.proprioception_size:
            features.append(self.proprioception(proprioception))
        return self.trunk(torch.cat(features, dim=-1))

    @property
    def proprioception_layer(self) -> nn.Linear | None:
        """See `Policy.proprioception_layer`."""
        if not self.config.proprioception_size:
            return None
        layer = self.proprioception[0]
        assert isinstance(layer, nn.Linear)
        return layer

    def check_options(self, spec: EnvSpec, *, options: Mapping[str, Any], path: str) -> None:
        """See `Policy.check_options`.

        Options apply to new weights. Stored weights have fixed options, so other values would have
        no effect.
        """
        wanted = self.config_class.for_env(spec, **options)
        for name in options:
            asked = wanted.option(name)
            there = self.config.option(name)
            if asked != there:
                raise CheckpointError(
                    f"actor_rollout_ref.model.options has {name}={asked}, but the weights in "
                    f"{path} were made with {name}={there}: leave it out, or start from new "
                    "weights: actor_rollout_ref.model.path=null, or a folder made by siirl "
                    "warm-start."
                )

    def check_resumed(self, folder: Path, *, changed: Collection[str]) -> None:
        """See `Policy.check_resumed`.

        A missing config.json is left to the check of the checkpoint's files.
        """
        file = folder / CONFIG_FILE
        if not file.is_file():
            return
        description = read_object(file, remedy="Choose an earlier checkpoint.")
        if description.get("policy") != self.name:
            return
        try:
            stored = self.config_class.from_json(description["config"])
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{file} does not describe a policy of siirl: {error!r}."
            ) from error
        for each in inspect.signature(self.config_class.for_env).parameters.values():
            if each.kind is not each.KEYWORD_ONLY:
                continue
            own, there = self.config.option(each.name), stored.option(each.name)
            if own != there:
                raise CheckpointError(
                    f"trainer.resume: this job's policy has {each.name}={as_text(own)}, but the "
                    f"weights in {folder} were made with {each.name}={as_text(there)}: repeat the "
                    "words of that run's command (actor_rollout_ref.model.options)."
                )

    def describe(self, folder: Path, *, notes: Mapping[str, Any]) -> None:
        """See `Policy.describe`; `notes` go into config.json."""
        description = {"policy": self.name, "config": self.config.to_json(), "notes": dict(notes)}
        (folder / CONFIG_FILE).write_text(json.dumps(description, indent=1) + "\n")


def mean_of_words(words: nn.Embedding, instruction_ids: torch.Tensor) -> torch.Tensor:
    """Mean [N, W] of the words' vectors of instructions [N, L]; 0 for an empty one."""
    count_N1 = (instruction_ids != PADDING).sum(1, keepdim=True).clamp(min=1)
    return words(instruction_ids).sum(1) / count_N1


def conv_flops(policy: TinyPolicy) -> int:
    """The convolutions of a tiny policy on one observation."""
    if policy.config.image_shape is None:
        return 0
    height, width = policy.config.image_shape[1:]
    total = 0
    for layer in policy.vision.convolutions:
        if not isinstance(layer, nn.Conv2d):
            continue
        height, width = (
            (size + 2 * int(layer.padding[axis]) - layer.kernel_size[axis]) // layer.stride[axis]
            + 1
            for axis, size in enumerate((height, width))
        )
        weights = math.prod(layer.weight.shape)
        total += 2 * weights * height * width
    return total


class ConvEncoder(nn.Module):
    """Three strided convolutions.

    The instruction scales and shifts the last feature map before it is flattened.
    """

    def __init__(self, *, cameras: int, size: tuple[int, int], condition: int, width: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3 * cameras, 32, kernel_size=6, stride=4, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3, stride=1, padding=1),
        )
        with torch.no_grad():
            channels, height, width_pixels = self.convolutions(
                torch.zeros(1, 3 * cameras, *size)
            ).shape[1:]
        self.scale_and_shift = nn.Linear(condition, 2 * channels)
        self.project = nn.Sequential(
            nn.ReLU(), nn.Flatten(), nn.Linear(channels * height * width_pixels, width), nn.ReLU()
        )

    def forward(self, pixel_values: torch.Tensor, condition_NW: torch.Tensor) -> torch.Tensor:
        """Features [N, width] of images uint8 [N, C, H, W, 3]."""
        images = pixel_values.permute(0, 1, 4, 2, 3).flatten(1, 2)
        features = self.convolutions(images.to(self.scale_and_shift.weight.dtype) / 127.5 - 1.0)
        scale, shift = self.scale_and_shift(condition_NW)[:, :, None, None].chunk(2, dim=1)
        return self.project(features * (1 + scale) + shift)


def hash_words(text: str, *, length: int, buckets: int) -> NDArray[np.int64]:
    """The first `length` words of `text` as ids in [1, buckets), padded with 0: int64 [length].

    The hash is CRC-32, which is the same on every machine and in every Python process.
    """
    return np.array(_word_ids(text, length=length, buckets=buckets), dtype=np.int64)


@functools.lru_cache(maxsize=1024)  # a policy reads its instruction at every decision
def _word_ids(text: str, *, length: int, buckets: int) -> list[int]:
    words = re.findall(r"[a-z0-9]+", text.lower())[:length]
    ids = [1 + zlib.crc32(word.encode()) % (buckets - 1) for word in words]
    return ids + [PADDING] * (length - len(ids))
