"""Reads checkpoints of SmolVLA as LeRobot publishes them; errors name the remedy.

`siirl.models.lerobot_folder` describes the layout. If a run wrote the folder, `vlm/` holds the
configuration and the tokenizer of the vision-language model; otherwise they come from the Hub, by
the name in config.json.

Left out, in addition to the list in `siirl.models.lerobot_folder`: ALOHA's conventions.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import SmolVLMConfig

from envs.base import EnvSpec
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.files.documents import read_object
from siirl.files.hub_files import local_copy
from siirl.files.hub_place import MODEL, HubPlace, is_hub_id
from siirl.files.paths import find
from siirl.files.weight_files import CONFIG_FILE
from siirl.models.flow_noise import LEARNING, NOISE_LEVEL, SDE, require_read
from siirl.models.flow_vla import DEVIATION
from siirl.models.lerobot_folder import (
    NOISE_STD,
    LeRobotFolder,
    PolicyKind,
    new_deviation,
    read_tokenizer,
    require_flags,
)
from siirl.models.smolvla import VLM_FILES, VLM_FOLDER, SmolVLA
from siirl.models.smolvla_network import NetworkShape, freeze
from siirl.models.weights import materialise, plan_weights, without_memory
from siirl.params.policies import no_weights
from siirl.params.references import check_options

KIND = PolicyKind(
    type="smolvla",
    name="SmolVLA",
    base="lerobot/smolvla_base",
    counts=(
        "chunk_size",
        "n_action_steps",
        "max_state_dim",
        "max_action_dim",
        "tokenizer_max_length",
        "num_steps",
    ),
    steps="num_steps",
    ratios=("expert_width_multiplier", "min_period", "max_period"),
    flags=dict.fromkeys(("freeze_vision_encoder", "train_expert_only", "train_state_proj")),
    image_size="resize_imgs_with_padding",
    only={
        "n_obs_steps": (1, "several observations in time"),
        "adapt_to_pi_aloha": (False, "ALOHA's conventions"),
        "use_peft": (False, "adapters of LeRobot: merge them into the weights first"),
        "add_image_special_tokens": (False, "markers around images"),
    },
    processors={
        "policy_preprocessor.json": (
            "rename_observations_processor",
            "to_batch_processor",
            "smolvla_new_line_processor",
            "tokenizer_processor",
            "device_processor",
            "normalizer_processor",
        ),
        "policy_postprocessor.json": ("unnormalizer_processor", "device_processor"),
    },
)
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
        folder: Folder saved by LeRobot or exported by a run.
        spec: Spec of the environment.
        images: Number of the environment's cameras that it reads, in their order; None: as many as
            the checkpoint was trained with. LeRobot also leaves out missing cameras.
        chunk_length: Actions executed of a chunk; None: the checkpoint's `n_action_steps`.
        steps: Denoising steps; None: the checkpoint's `num_steps`.
        noise: `sde` (Flow-SDE); `learnt` (Flow-Noise) and `end` add a small layer to new weights.
        noise_level: Noise level of Flow-SDE.
        noise_std: Bounds of a learnt deviation, in deviations of the data's actions.
        train_expert_only: Freeze the vision-language model; None: the checkpoint's value.
        freeze_vision_encoder: Freeze the image encoder; None: the checkpoint's value.
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
    require_flags(train_expert_only=train_expert_only, freeze_vision_encoder=freeze_vision_encoder)
    stored = LeRobotFolder.read(folder, KIND)
    shape = _shape(stored)
    flow = stored.flow(steps=steps, noise=noise, level=noise_level, std=noise_std)
    vlm_folder = _vlm_folder(folder, stored.config, vlm)
    io_format = stored.io_format(
        spec,
        images=images,
        chunk_length=chunk_length,
        tokenizer=read_tokenizer(vlm_folder / VLM_FILES[1]),
        truncation_side=_truncation_side(vlm_folder),
    )
    vlm_config = SmolVLMConfig(**read_object(vlm_folder / CONFIG_FILE, remedy="Download it again."))
    with without_memory():
        policy = SmolVLA(
            vlm_config,
            shape=shape,
            io_format=io_format,
            actions=stored.actions(spec),
            flow=flow,
            folder=folder,
            vlm_folder=vlm_folder,
        )
    asked = {
        "train_expert_only": train_expert_only,
        "freeze_vision_encoder": freeze_vision_encoder,
        "train_state_proj": None,
    }
    freeze(
        policy.model,
        {name: stored.config[name] if flag is None else flag for name, flag in asked.items()},
    )
    policy.planned = plan_weights(
        policy,
        folder,
        left_out=lambda name: name.startswith(DEVIATION) and noise not in LEARNING,
        further=new_deviation(policy, folder),
    )
    if weights:
        materialise(policy, torch.device("cpu"))
    return policy


def make_smolvla(
    spec: EnvSpec, path: str | None, /, *, weights: bool = True, **options: Any
) -> SmolVLA:
    """`load_smolvla` with the signature of `siirl.params.policies`.

    Raises:
        ConfigError: No path, since siirl ships no weights of it, or an unknown option.
    """
    check_options(options, load_smolvla)
    if path is None:
        raise ConfigError(f"{no_weights('smolvla')}.")
    require_read(options, noise=options.get("noise", SDE))
    return load_smolvla(path, spec, **options, weights=weights)


def _shape(stored: LeRobotFolder) -> NetworkShape:
    """Raises CheckpointError for unsupported settings of the network."""
    config = stored.config
    problem = _problem(config)
    if problem is not None:
        raise CheckpointError(f"{stored.folder / CONFIG_FILE}: {problem}")
    return NetworkShape(
        vlm_layers=config["num_vlm_layers"],
        attention_mode=config["attention_mode"],
        self_attn_every_n_layers=config["self_attn_every_n_layers"],
        expert_width_multiplier=config["expert_width_multiplier"],
        max_state_dim=config["max_state_dim"],
        max_action_dim=config["max_action_dim"],
        min_period=config["min_period"],
        max_period=config["max_period"],
        image_size=stored.image_size,
    )


def _problem(config: Mapping[str, Any]) -> str | None:
    if type(config.get("self_attn_every_n_layers")) is not int:
        found = config.get("self_attn_every_n_layers")
        return f"self_attn_every_n_layers={found!r} must be a whole number."
    if config.get("attention_mode") not in ATTENTION:
        return f"attention_mode={config.get('attention_mode')!r} must be one of {ATTENTION}."
    layers, of_expert = config.get("num_vlm_layers"), config.get("num_expert_layers")
    if type(layers) is not int or of_expert not in (None, -1, 0, layers):
        return (
            f"num_expert_layers={of_expert!r} with num_vlm_layers={layers!r} is not supported: the "
            "action expert must have as many layers as the language model (-1)."
        )
    return None


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
    if not is_hub_id(name):
        raise MissingAssetError(
            f"There is no folder {name}, which should hold the vision-language model's "
            f"configuration and tokenizer: set {key} to a folder with {', '.join(VLM_FILES)}."
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


def _truncation_side(folder: Path) -> str:
    """The side on which LeRobot's tokenizer cuts long instructions."""
    file = folder / VLM_FILES[2]
    if not file.is_file():
        return "right"
    return str(read_object(file, remedy="Download it again.").get("truncation_side", "right"))
