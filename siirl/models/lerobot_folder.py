"""Reads a policy folder in LeRobot's layout: checks its config.json and derives the flow policy's
settings.

A folder has config.json (`type`), model.safetensors, and the processors of LeRobot 0.4 and later
(`siirl.models.lerobot_scales`). A run's checkpoints have the same layout.

Left out: checkpoints of LeRobot before 0.4, which hold statistics among the weights (LeRobot
converts them), LeRobot's own adapters, several observations in time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tokenizers import Tokenizer

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from envs.libero.openvla_conventions import published_image
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.files.documents import is_count, read_object
from siirl.files.weight_files import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE
from siirl.models.action_tokenizer import ContinuousActions
from siirl.models.flow_noise import LEARNING, require_noise
from siirl.models.flow_vla import (
    DEVIATION,
    FlowSettings,
    FlowVLA,
    InputOutputFormat,
    NormalisedActions,
    Scale,
)
from siirl.models.lerobot_scales import ACTION, STATE, ProcessorSteps, read_scale
from siirl.models.weights import stored_shapes

CAMERA = "VISUAL"
EMPTY_CAMERA = "observation.images.empty_camera_"
"""Cameras that LeRobot adds and masks; no environment has them."""
# RLinf's `noise_logvar_range` for pi0, in deviations of the data's actions
NOISE_STD = (0.08, 0.16)


@dataclass(frozen=True, kw_only=True)
class PolicyKind:
    """What config.json of a policy has, and how its processors read."""

    type: str
    name: str
    """Name in messages."""
    base: str
    """The published starting point of fine-tuning; it has no statistics of a robot."""
    counts: tuple[str, ...]
    """Keys with whole numbers of at least 1."""
    steps: str
    """Key of the number of denoising steps."""
    ratios: tuple[str, ...]
    """Keys with positive numbers."""
    flags: Mapping[str, bool | None]
    """Keys with true or false, and LeRobot's default; None: the key is required."""
    image_size: str
    """Key of the width and height that images are scaled to; null: unscaled."""
    only: Mapping[str, tuple[Any, str]]
    """Settings of which siirl supports only one value, and the meaning of other values."""
    processors: ProcessorSteps


@dataclass(frozen=True)
class LeRobotFolder:
    """A checked config.json and its folder."""

    folder: Path
    kind: PolicyKind
    config: dict[str, Any] = field(repr=False)

    @classmethod
    def read(cls, folder: Path, kind: PolicyKind) -> "LeRobotFolder":
        """Read a folder.

        Raises:
            MissingAssetError: A missing file.
            CheckpointError: Another policy, or unsupported settings.
        """
        file = folder / CONFIG_FILE
        if not file.is_file():
            raise MissingAssetError(
                f"No {CONFIG_FILE} in {folder}. Set actor_rollout_ref.model.path to the whole "
                f"folder of a {kind.name}."
            )
        if not (folder / WEIGHTS_FILE).is_file() and not (folder / INDEX_FILE).is_file():
            raise MissingAssetError(f"No {WEIGHTS_FILE} in {folder}: download it.")
        config = read_object(file, remedy="Download it again.")
        if config.get("type") != kind.type:
            raise CheckpointError(
                f"{file} does not describe a LeRobot {kind.name}: its type is "
                f"{config.get('type')!r}, expected {kind.type!r}."
            )
        problem = _problem(config, kind)
        if problem is not None:
            raise CheckpointError(f"{file}: {problem}")
        defaults = {name: flag for name, flag in kind.flags.items() if flag is not None}
        return cls(folder, kind, defaults | config)

    @property
    def cameras(self) -> list[str]:
        """Names of the cameras that the policy was trained with."""
        inputs = self.config["input_features"].items()
        seen = [name for name, feature in inputs if feature["type"] == CAMERA]
        return [name for name in seen if not name.startswith(EMPTY_CAMERA)]

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of state and action."""
        state = self.config["input_features"][STATE]["shape"][0]
        return {STATE: state, ACTION: self.config["output_features"][ACTION]["shape"][0]}

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Width and height that images are scaled to; None: unscaled."""
        size = self.config.get(self.kind.image_size)
        return None if size is None else (size[0], size[1])

    def io_format(
        self,
        spec: EnvSpec,
        *,
        images: int | None,
        chunk_length: int | None,
        tokenizer: Tokenizer,
        truncation_side: str,
    ) -> InputOutputFormat:
        """How the policy reads this environment. Arguments that are None have the checkpoint's
        values.

        Raises:
            ConfigError: An environment that does not fit.
            CheckpointError: No statistics.
            ValueError: An invalid option.
        """
        seen = len(self.cameras) if images is None else images
        executed = self.config["n_action_steps"] if chunk_length is None else chunk_length
        if not is_count(executed, least=1) or executed > self.config["chunk_size"]:
            raise ValueError(
                f"chunk_length={executed!r} must be from 1 to {self.config['chunk_size']}, the "
                "actions that the checkpoint denoises at once."
            )
        self._check_environment(spec, images=seen)
        return InputOutputFormat(
            images=seen,
            view=published_image if _is_libero(spec) else lambda image: image,
            state=self._scale(STATE),
            tokenizer=tokenizer,
            instruction_length=self.config["tokenizer_max_length"],
            truncation_side=truncation_side,
            chunk_size=self.config["chunk_size"],
            chunk_length=executed,
            max_action_dim=self.config["max_action_dim"],
        )

    def actions(self, spec: EnvSpec) -> NormalisedActions:
        """The coding of the environment's actions."""
        bounds = ContinuousActions.for_space(spec.action_space)
        return NormalisedActions(bounds.low, bounds.high, scale=self._scale(ACTION))

    def flow(
        self, *, steps: int | None, noise: str, level: float, std: Sequence[float]
    ) -> FlowSettings:
        """How the flow is sampled; raises ValueError for an invalid option."""
        require_noise(noise, level, std)
        sampled = self.config[self.kind.steps] if steps is None else steps
        if not is_count(sampled, least=1):
            raise ValueError(f"steps={sampled!r} must be a whole number of at least 1.")
        return FlowSettings(
            steps=sampled, noise=noise, noise_level=level, noise_std=(std[0], std[1])
        )

    def _scale(self, name: str) -> Scale:
        return read_scale(
            self.folder,
            name,
            size=self.sizes[name],
            steps=self.kind.processors,
            base=self.kind.base,
        )

    def _check_environment(self, spec: EnvSpec, *, images: int) -> None:
        """Raise ConfigError unless observations and actions are those of the checkpoint."""
        space = spec.observation_space
        spaces = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}
        there = (spaces[IMAGES].shape or (0,))[0] if IMAGES in spaces else 0
        cameras = self.cameras
        sizes = self.sizes
        folder = self.folder
        if not is_count(images, least=1) or images > len(cameras):
            raise ConfigError(
                f"actor_rollout_ref.model.options.images={images!r} must be from 1 to "
                f"{len(cameras)}, the cameras of the policy in {folder} ({', '.join(cameras)})."
            )
        if images > there:
            raise ConfigError(
                f"The policy in {folder} reads {images} cameras ({', '.join(cameras[:images])}), "
                f"but environment {spec.name!r} has {there}. Render more cameras (env=libero: "
                "env.camera=both), or set actor_rollout_ref.model.options.images: the others are "
                "then left out."
            )
        felt = int(np.prod(spaces[PROPRIOCEPTION].shape or (0,))) if PROPRIOCEPTION in spaces else 0
        if felt != sizes[STATE]:
            raise ConfigError(
                f"The policy in {folder} reads {sizes[STATE]} numbers of {STATE}, but "
                f"{spec.name!r} has {felt} of proprioception: choose an environment with the robot "
                "that it was trained on."
            )
        if spec.action_space.shape != (sizes[ACTION],):
            raise ConfigError(
                f"The policy in {folder} has actions of {sizes[ACTION]} numbers, but {spec.name!r} "
                f"has {spec.action_space}: choose an environment with the robot that it was "
                "trained on."
            )


def require_flags(**options: bool | None) -> None:
    """Raise ValueError for an option other than true, false or None (the folder's value)."""
    for name, value in options.items():
        if value is not None and type(value) is not bool:
            raise ValueError(f"{name}={value!r} must be true or false.")


def _is_libero(spec: EnvSpec) -> bool:
    """Whether it is LIBERO, with or without stand-in assets (they change the name)."""
    return spec.name.partition(" ")[0] == "libero"


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in a file; raises CheckpointError for a damaged one."""
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(f"{file} is damaged ({error}): download it again.") from error


def new_deviation(policy: FlowVLA, folder: Path) -> dict[str, torch.Tensor]:
    """Weights of learnt noise for a checkpoint without them; a run's checkpoint has them."""
    if policy.flow.noise not in LEARNING or f"{DEVIATION}.weight" in stored_shapes(folder):
        return {}
    return {
        f"{DEVIATION}.{name}": torch.zeros(weight.shape)
        for name, weight in policy.deviation.named_parameters()
    }


def _problem(config: Mapping[str, Any], kind: PolicyKind) -> str | None:
    """What is wrong with a config.json, or None."""
    for name in kind.counts:
        if not is_count(config.get(name), least=1):
            return f"{name}={config.get(name)!r} must be a whole number of at least 1."
    for name, default in kind.flags.items():
        if type(config.get(name, default)) is not bool:
            return f"{name}={config.get(name)!r} must be true or false."
    for name in kind.ratios:
        value: Any = config.get(name)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            return f"{name}={value!r} must be a positive number."
    size = config.get(kind.image_size, ())
    if size is not None and not (
        isinstance(size, list) and len(size) == 2 and all(is_count(side, least=1) for side in size)
    ):
        return f"{kind.image_size}={size!r} must be null or a width and a height."
    for name, (only, meaning) in kind.only.items():
        if config.get(name, only) != only:
            return f"{name}={config[name]!r} is not supported ({meaning})."
    return _problem_of_features(config)


def _problem_of_features(config: Mapping[str, Any]) -> str | None:
    for place in ("input_features", "output_features"):
        parts = config.get(place)
        if not isinstance(parts, dict) or not all(map(_is_feature, parts.values())):
            return f"{place}={parts!r} does not give each name a type and a shape."
    if STATE not in config["input_features"] or ACTION not in config["output_features"]:
        return f"it lacks {STATE} or {ACTION}, which the policy reads and writes."
    for name, size in ((STATE, "max_state_dim"), (ACTION, "max_action_dim")):
        part = "input_features" if name == STATE else "output_features"
        if config[part][name]["shape"][0] > config[size]:
            return f"{name} has more numbers than {size}={config[size]}."
    if config["n_action_steps"] > config["chunk_size"]:
        return f"n_action_steps={config['n_action_steps']} is more than chunk_size."
    return None


def _is_feature(feature: Any) -> bool:
    if not isinstance(feature, dict) or not isinstance(feature.get("shape"), list):
        return False
    sizes = feature["shape"]
    return "type" in feature and len(sizes) > 0 and all(is_count(size, least=1) for size in sizes)
