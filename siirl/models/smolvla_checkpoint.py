"""Reads checkpoints of SmolVLA as LeRobot publishes them; errors name the remedy.

A folder has config.json (`type` smolvla), model.safetensors, and the processors of LeRobot 0.4 and
later (`siirl.models.smolvla_scales`). If a run wrote the folder, `vlm/` has the configuration and
the tokenizer of the vision-language model; else they come from the Hub, by the name in config.json.
A run's checkpoints have the same layout.

Left out: checkpoints of LeRobot before 0.4, which hold statistics among the weights (LeRobot
converts them), adapters of LeRobot's own, ALOHA's conventions, several observations in time.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from accelerate import init_empty_weights
from tokenizers import Tokenizer
from transformers import SmolVLMConfig

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from envs.libero.openvla import published_image
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.models.action_tokenizer import ContinuousActions
from siirl.models.flow_noise import LEARNT, NOISE_LEVEL, SDE, require_noise, require_read
from siirl.models.smolvla import (
    DEVIATION,
    VLM_FILES,
    VLM_FOLDER,
    FlowSettings,
    NormalisedActions,
    Reading,
    SmolVLA,
)
from siirl.models.smolvla_network import NetworkShape, freeze
from siirl.models.smolvla_scales import ACTION, STATE, read_scale
from siirl.models.weights import CONFIG_FILE, materialise, plan_weights, stored_shapes
from siirl.params.documents import is_count, read_object
from siirl.params.hub_files import local_copy
from siirl.params.hub_place import MODEL, HubPlace
from siirl.params.paths import find
from siirl.params.weight_files import INDEX_FILE, WHOLE_FILE

NAME = "smolvla"
CAMERA = "VISUAL"
# RLinf's `noise_logvar_range` for pi0, in deviations of the data's actions
NOISE_STD = (0.08, 0.16)
COUNTS = {
    "chunk_size": 1,
    "n_action_steps": 1,
    "max_state_dim": 1,
    "max_action_dim": 1,
    "tokenizer_max_length": 1,
    "num_steps": 1,
}
"""Whole numbers in config.json, and their minimum."""
RATIOS = ("expert_width_multiplier", "min_period", "max_period")
FLAGS = ("freeze_vision_encoder", "train_expert_only", "train_state_proj")
UNSUPPORTED = {
    "n_obs_steps": (1, "several observations in time"),
    "adapt_to_pi_aloha": (False, "ALOHA's conventions"),
    "use_peft": (False, "adapters of LeRobot: merge them into the weights first"),
    "add_image_special_tokens": (False, "markers around images"),
}
"""Settings that siirl supports in one value only, and the meaning of other values."""
ATTENTION = ("cross_attn", "self_attn")


def load_smolvla(
    folder: str | Path,
    spec: EnvSpec,
    *,
    images: int | None = None,
    chunk_length: int | None = None,
    steps: int | None = None,
    noise: str = SDE,
    noise_level: float = NOISE_LEVEL,
    noise_std: Sequence[float] = NOISE_STD,
    train_expert_only: bool | None = None,
    freeze_vision_encoder: bool | None = None,
    vlm: str | None = None,
    weights: bool = True,
) -> SmolVLA:
    """Read a checkpoint of SmolVLA.

    Args:
        folder: As LeRobot saves it, or as a run exports it.
        spec: Of the environment.
        images: Number of the environment's cameras that it reads, in their order; None: as many as
            the checkpoint was trained with. LeRobot leaves out missing cameras too.
        chunk_length: Actions executed of a chunk; None: the checkpoint's `n_action_steps`.
        steps: Of denoising; None: the checkpoint's `num_steps`.
        noise: `sde` (Flow-SDE), or `learnt` (Flow-Noise), which adds a small layer to new weights.
        noise_level: Of Flow-SDE.
        noise_std: Bounds of a learnt deviation, in deviations of the data's actions.
        train_expert_only: Freeze the vision-language model; None: as the checkpoint says.
        freeze_vision_encoder: Freeze the image encoder; None: as the checkpoint says.
        vlm: Folder or hub id with configuration and tokenizer of the vision-language model.
        weights: False checks everything and plans to read the weights later
            (`siirl.models.weights.materialise`).

    Raises:
        MissingAssetError: A missing file.
        CheckpointError: A damaged file, another policy, or one with unsupported settings.
        ConfigError: An environment that does not fit.
        ValueError: An invalid option.
    """
    folder = Path(folder)
    config = _config(folder)
    require_noise(noise, noise_level, noise_std)
    features = {**config["input_features"], **config["output_features"]}
    cameras = [name for name, feature in features.items() if feature["type"] == CAMERA]
    seen = len(cameras) if images is None else images
    executed, sampled = _counts(config, chunk_length=chunk_length, steps=steps)
    sizes = {name: features[name]["shape"][0] for name in (STATE, ACTION)}
    _check_environment(spec, images=seen, cameras=cameras, sizes=sizes, folder=folder)
    vlm_folder = _vlm_folder(folder, config, vlm)
    reading = _reading(folder, vlm_folder, spec, config, images=seen, executed=executed)
    bounds = ContinuousActions.for_space(spec.action_space)
    vlm_config = SmolVLMConfig(**read_object(vlm_folder / CONFIG_FILE, remedy="Download it again."))
    with init_empty_weights(include_buffers=False):
        policy = SmolVLA(
            vlm_config,
            shape=_shape(config),
            reading=reading,
            actions=NormalisedActions(
                bounds.low,
                bounds.high,
                scale=read_scale(folder, ACTION, config=config, size=sizes[ACTION]),
            ),
            flow=FlowSettings(
                steps=sampled,
                noise=noise,
                noise_level=noise_level,
                noise_std=(noise_std[0], noise_std[1]),
            ),
            folder=folder,
            vlm_folder=vlm_folder,
        )
    asked = {
        "train_expert_only": train_expert_only,
        "freeze_vision_encoder": freeze_vision_encoder,
    }
    freeze(policy.model, _frozen(config, asked))
    policy.planned = plan_weights(
        policy,
        folder,
        left_out=lambda name: name.startswith(DEVIATION) and noise != LEARNT,
        further=_new_deviation(policy, folder),
    )
    if weights:
        materialise(policy, torch.device("cpu"))
    return policy


def _counts(
    config: Mapping[str, Any], *, chunk_length: int | None, steps: int | None
) -> tuple[int, int]:
    """Executed actions of a chunk and steps of denoising: as asked for, or the checkpoint's."""
    executed = config["n_action_steps"] if chunk_length is None else chunk_length
    if not is_count(executed, least=1) or executed > config["chunk_size"]:
        raise ValueError(
            f"chunk_length={executed!r} must be from 1 to {config['chunk_size']}, the actions that "
            "the checkpoint denoises at once."
        )
    sampled = config["num_steps"] if steps is None else steps
    if not is_count(sampled, least=1):
        raise ValueError(f"steps={sampled!r} must be a whole number of at least 1.")
    return executed, sampled


def _frozen(config: Mapping[str, Any], asked: Mapping[str, bool | None]) -> dict[str, bool]:
    """Flags of `freeze`: as asked for, or the checkpoint's."""
    flags = {**asked, "train_state_proj": None}
    return {name: config[name] if flag is None else flag for name, flag in flags.items()}


def _reading(
    folder: Path,
    vlm_folder: Path,
    spec: EnvSpec,
    config: Mapping[str, Any],
    *,
    images: int,
    executed: int,
) -> Reading:
    """How the policy reads observations and instructions."""
    size = config["input_features"][STATE]["shape"][0]
    return Reading(
        images=images,
        view=published_image if spec.name == "libero" else lambda image: image,
        state=read_scale(folder, STATE, config=config, size=size),
        tokenizer=_tokenizer(vlm_folder),
        instruction_length=config["tokenizer_max_length"],
        truncation_side=_truncation_side(vlm_folder),
        chunk_size=config["chunk_size"],
        chunk_length=executed,
    )


def make_smolvla(
    spec: EnvSpec, path: str | None, *, weights: bool = True, **options: Any
) -> SmolVLA:
    """`load_smolvla` with the signature of `siirl.params.policies`.

    Raises:
        ConfigError: No path: siirl ships no weights of it.
    """
    if path is None:
        raise ConfigError(
            "model=smolvla ships no weights: set actor_rollout_ref.model.path to a folder that "
            "LeRobot saved (lerobot-train --policy.type=smolvla), or to hf://OWNER/NAME."
        )
    require_read(options, noise=options.get("noise", SDE))
    return load_smolvla(path, spec, **options, weights=weights)


def _config(folder: Path) -> dict[str, Any]:
    """config.json of a supported checkpoint."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise MissingAssetError(
            f"No {CONFIG_FILE} in {folder}. Set actor_rollout_ref.model.path to the whole folder "
            "of a SmolVLA."
        )
    if not (folder / WHOLE_FILE).is_file() and not (folder / INDEX_FILE).is_file():
        raise MissingAssetError(f"No {WHOLE_FILE} in {folder}: download it.")
    config = read_object(file, remedy="Download it again.")
    if config.get("type") != NAME:
        raise CheckpointError(
            f"{file} describes no SmolVLA of LeRobot: its type is {config.get('type')!r}, expected "
            f"{NAME!r}."
        )
    problem = _problem(config)
    if problem is not None:
        raise CheckpointError(f"{file}: {problem}")
    return config


def _problem(config: Mapping[str, Any]) -> str | None:
    """What is wrong with a config.json, or None."""
    for name, least in COUNTS.items():
        if not is_count(config.get(name), least=least):
            return f"{name}={config.get(name)!r} must be a whole number of at least {least}."
    for name in FLAGS:
        if type(config.get(name)) is not bool:
            return f"{name}={config.get(name)!r} must be true or false."
    for name in RATIOS:
        value: Any = config.get(name)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            return f"{name}={value!r} must be a positive number."
    size = config.get("resize_imgs_with_padding", ())
    if size is not None and not (
        isinstance(size, list) and len(size) == 2 and all(is_count(side, least=1) for side in size)
    ):
        return f"resize_imgs_with_padding={size!r} must be null or a width and a height."
    if type(config.get("self_attn_every_n_layers")) is not int:
        found = config.get("self_attn_every_n_layers")
        return f"self_attn_every_n_layers={found!r} must be a whole number."
    for name, (only, meaning) in UNSUPPORTED.items():
        if config.get(name, only) != only:
            return f"{name}={config[name]!r} is not supported ({meaning})."
    if config.get("attention_mode") not in ATTENTION:
        return f"attention_mode={config.get('attention_mode')!r} must be one of {ATTENTION}."
    layers, of_expert = config.get("num_vlm_layers"), config.get("num_expert_layers")
    if type(layers) is not int or of_expert not in (None, -1, 0, layers):
        return (
            f"num_expert_layers={of_expert!r} with num_vlm_layers={layers!r} is not supported: the "
            "action expert must have as many layers as the language model (-1)."
        )
    for place in ("input_features", "output_features"):
        parts = config.get(place)
        if not isinstance(parts, dict) or not all(map(_is_feature, parts.values())):
            return f"{place}={parts!r} does not give each name a type and a shape."
    if STATE not in config["input_features"] or ACTION not in config["output_features"]:
        return f"it has no {STATE} or no {ACTION}, which the policy reads and writes."
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


def _shape(config: Mapping[str, Any]) -> NetworkShape:
    size = config["resize_imgs_with_padding"]
    return NetworkShape(
        vlm_layers=config["num_vlm_layers"],
        attention_mode=config["attention_mode"],
        self_attn_every_n_layers=config["self_attn_every_n_layers"],
        expert_width_multiplier=config["expert_width_multiplier"],
        max_state_dim=config["max_state_dim"],
        max_action_dim=config["max_action_dim"],
        min_period=config["min_period"],
        max_period=config["max_period"],
        image_size=None if size is None else (size[0], size[1]),
    )


def _new_deviation(policy: SmolVLA, folder: Path) -> dict[str, torch.Tensor]:
    """Weights of learnt noise for a checkpoint without; a run's checkpoint has them."""
    if policy.flow.noise != LEARNT or f"{DEVIATION}.weight" in stored_shapes(folder):
        return {}
    return {
        f"{DEVIATION}.{name}": torch.zeros(weight.shape)
        for name, weight in policy.deviation.named_parameters()
    }


def _vlm_folder(folder: Path, config: Mapping[str, Any], asked: str | None) -> Path:
    """The folder with configuration and tokenizer of the vision-language model."""
    key = "actor_rollout_ref.model.options.vlm"
    if asked is None and (folder / VLM_FOLDER).is_dir():
        return _require_vlm(folder / VLM_FOLDER)
    name = config.get("vlm_model_name") if asked is None else asked
    if not isinstance(name, str):
        raise CheckpointError(f"{folder / CONFIG_FILE} has no vlm_model_name: set {key}=FOLDER.")
    if find(name).is_dir():
        return _require_vlm(find(name))
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        raise MissingAssetError(
            f"There is no folder {name}, from which the vision-language model's configuration and "
            f"tokenizer are read: set {key} to a folder with {', '.join(VLM_FILES)}."
        )
    place = f"{key} (vlm_model_name of {folder / CONFIG_FILE})" if asked is None else key
    files = [local_copy(HubPlace(MODEL, name, path=file), key=place)[0] for file in VLM_FILES]
    return files[0].parent


def _require_vlm(folder: Path) -> Path:
    missing = [name for name in VLM_FILES[:2] if not (folder / name).is_file()]
    if missing:
        raise MissingAssetError(
            f"No {' and no '.join(missing)} in {folder}, the vision-language model's folder: "
            "download what is missing."
        )
    return folder


def _tokenizer(folder: Path) -> Tokenizer:
    file = folder / VLM_FILES[1]
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(f"{file} is damaged ({error}): download it again.") from error


def _truncation_side(folder: Path) -> str:
    """The side on which LeRobot's tokenizer cuts long instructions."""
    file = folder / VLM_FILES[2]
    if not file.is_file():
        return "right"
    return str(read_object(file, remedy="Download it again.").get("truncation_side", "right"))


def _check_environment(
    spec: EnvSpec,
    *,
    images: int,
    cameras: Sequence[str],
    sizes: Mapping[str, int],
    folder: Path,
) -> None:
    """Raise ConfigError unless observations and actions are those of the checkpoint."""
    spaces = (
        spec.observation_space.spaces
        if isinstance(spec.observation_space, gymnasium.spaces.Dict)
        else {}
    )
    there = (spaces[IMAGES].shape or (0,))[0] if IMAGES in spaces else 0
    if not is_count(images, least=1) or images > len(cameras):
        raise ConfigError(
            f"actor_rollout_ref.model.options.images={images!r} must be from 1 to {len(cameras)}, "
            f"the cameras of the policy in {folder} ({', '.join(cameras)})."
        )
    if images > there:
        raise ConfigError(
            f"The policy in {folder} reads {images} cameras ({', '.join(cameras[:images])}), and "
            f"environment {spec.name!r} has {there}. Render more (env=libero: env.camera=both), or "
            "set actor_rollout_ref.model.options.images: the others are then left out."
        )
    felt = int(np.prod(spaces[PROPRIOCEPTION].shape or (0,))) if PROPRIOCEPTION in spaces else 0
    if felt != sizes[STATE]:
        raise ConfigError(
            f"The policy in {folder} reads {sizes[STATE]} numbers of {STATE}, and {spec.name!r} "
            f"has {felt} of proprioception: take an environment of the robot that it was trained on."
        )
    if spec.action_space.shape != (sizes[ACTION],):
        raise ConfigError(
            f"The policy in {folder} has actions of {sizes[ACTION]} numbers, and {spec.name!r} has "
            f"{spec.action_space}: take an environment of the robot that it was trained on."
        )
