"""Reads checkpoints of OpenVLA-OFT as their authors publish them; errors name the remedy.

A folder has config.json, safetensors files with the names of `OpenVLAForActionPrediction`,
tokenizer.json, preprocessor_config.json, dataset_statistics.json and, if proprioception is read,
its projector in a separate file. A run's checkpoints have the same layout, with all weights in one
file. Reinforcement learning needs a policy that generates actions as tokens (SimpleVLA-RL, arXiv
2509.09674, fine-tunes such): one with a regression head has no distribution to sample from and is
refused. The first OpenVLA, which generates one token after the other, has the same files, but is
not supported.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from accelerate import init_empty_weights
from tokenizers import Tokenizer

from envs.archives import check_stored
from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from envs.libero.openvla import ACTION_SIZE, BINS, IMAGE_SIZE, Quantiles, read_statistics
from siirl.errors import CheckpointError, ConfigError, MissingAssetError, UnknownNameError
from siirl.models.openvla_oft import PREPROCESSOR_FILE, TOKENIZER_FILE, OpenVLAOFT, OpenVLATokenizer
from siirl.models.openvla_vision import VisionEncoder, encoder_shape
from siirl.models.timm_vision import TimmEncoder
from siirl.models.weights import CONFIG_FILE, materialise, plan_weights, stored_shapes
from siirl.params.documents import read_object

CONFIG_KEYS = ("timm_model_ids", "image_sizes", "text_config", "pad_token_id", "pad_to_multiple_of")
VISION = "vision_backbone."
OWN = "own"
VISIONS = (OWN, "timm")
FREQUENCIES = "rotary_emb.inv_freq"
STATE_PROJECTOR = "proprio_projector."
STATE_PROJECTOR_FILE = "proprio_projector--*_checkpoint.pt"
ACTION_HEAD = "action_head--*_checkpoint.pt"


def load_openvla_oft(
    folder: str | Path,
    spec: EnvSpec,
    *,
    images: int = 1,
    statistics: str | None = None,
    question_length: int = 96,
    recompute: bool = True,
    vision: str = OWN,
    weights: bool = True,
) -> OpenVLAOFT:
    """Read a checkpoint of OpenVLA-OFT whose actions are tokens.

    Args:
        folder: As published, or as a run exports it.
        spec: Of the environment, which must have LIBERO's actions.
        images: Number of the environment's cameras that it reads, in their order: 1 for
            SimpleVLA-RL's, 2 with the wrist camera.
        statistics: Data set whose ranges scale numbers, or its suite: `spatial`, `10`; None: the
            only one in the checkpoint.
        question_length: Tokens that questions are padded to.
        recompute: Recompute activations in the backward pass instead of keeping them.
        vision: Modules of the image encoders: `own`, or `timm` (`siirl.models.timm_vision`).
        weights: False checks everything and plans to read 15 GB of weights later
            (`siirl.models.weights.materialise`).

    Raises:
        MissingAssetError: A missing file.
        CheckpointError: A damaged file, another model, or a policy that outputs numbers instead of
            tokens.
        ConfigError: An environment or an option that does not fit.
    """
    folder = Path(folder)
    config, preprocessor = _described(folder)
    stored = stored_shapes(folder)
    projector = _projector_of_state(folder)
    reads_state = bool(projector) or any(name.startswith(STATE_PROJECTOR) for name in stored)
    try:
        actions, state = read_statistics(folder, data=statistics)
    except ValueError as error:
        raise CheckpointError(
            f"{error} (actor_rollout_ref.model.options.statistics={statistics})"
        ) from error
    if reads_state and state is None:
        raise CheckpointError(
            f"{folder} reads proprioception, but its statistics have no ranges of it ('proprio')."
        )
    _check_environment(spec, images=images, state=state if reads_state else None, folder=folder)
    with init_empty_weights(include_buffers=False):
        policy = OpenVLAOFT(
            config,
            preprocessor=preprocessor,
            tokenizer=_tokenizer(folder),
            action_tokenizer=OpenVLATokenizer(
                bins=BINS,
                low=(-1.0,) * ACTION_SIZE,
                high=(1.0,) * ACTION_SIZE,
                quantiles=actions,
                vocabulary=int(config["text_config"]["vocab_size"])
                - int(config["pad_to_multiple_of"]),
            ),
            proprioception=state if reads_state else None,
            images=images,
            question_length=question_length,
            recompute=recompute,
            folder=folder,
            encoders=_encoders(config["timm_model_ids"], vision=vision, recompute=recompute),
        )
    expected = policy.state_dict()
    policy.planned = plan_weights(
        policy,
        folder,
        left_out=lambda name: name not in expected and unused(name),
        further=projector,
    )
    if weights:
        materialise(policy, torch.device("cpu"))
    return policy


def make_openvla_oft(
    spec: EnvSpec, path: str | None, *, weights: bool = True, **options: Any
) -> OpenVLAOFT:
    """`load_openvla_oft` with the signature of `siirl.params.policies`.

    Raises:
        ConfigError: No path: there are no new weights of 7B parameters.
    """
    if path is None:
        raise ConfigError(
            "model=openvla_oft ships no weights: set actor_rollout_ref.model.path to a "
            "checkpoint's folder."
        )
    return load_openvla_oft(path, spec, **options, weights=weights)


def _encoders(names: Sequence[str], *, vision: str, recompute: bool) -> list[VisionEncoder] | None:
    """The image encoders of an option; None for our own."""
    if vision not in VISIONS:
        raise UnknownNameError.of(
            kind="actor_rollout_ref.model.options.vision", name=vision, known=VISIONS
        )
    if vision == OWN:
        return None
    return [
        TimmEncoder(name, encoder_shape(name), image_size=IMAGE_SIZE, recompute=recompute)
        for name in names
    ]


def unused(name: str) -> bool:
    """Whether no pass reads a checkpoint's weight.

    These are an encoder's last block and what follows it, and an old Llama's frequencies.
    """
    return name.startswith(VISION) or name.endswith(FREQUENCIES)


def _described(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and preprocessor_config.json of a supported checkpoint."""
    heads = sorted(folder.glob(ACTION_HEAD))
    if heads:
        raise CheckpointError(
            f"{folder} has {heads[0].name}: it outputs numbers and no tokens, so it has no "
            "probabilities to learn from. Take a checkpoint that was fine-tuned to generate "
            "actions as tokens (of SimpleVLA-RL, for example)."
        )
    contents = []
    for name, keys in ((CONFIG_FILE, CONFIG_KEYS), (PREPROCESSOR_FILE, ("means", "stds"))):
        if not (folder / name).is_file():
            raise MissingAssetError(
                f"No {name} in {folder}. Set actor_rollout_ref.model.path to the whole folder of "
                "an OpenVLA-OFT."
            )
        content = read_object(folder / name, remedy="Download it again.")
        missing = [key for key in keys if key not in content]
        if missing:
            raise CheckpointError(
                f"{folder / name} does not describe an OpenVLA: {', '.join(missing)} missing."
            )
        contents.append(content)
    config, preprocessor = contents
    if not isinstance(config["text_config"], dict) or "vocab_size" not in config["text_config"]:
        raise CheckpointError(
            f"{folder / CONFIG_FILE} does not describe an OpenVLA: vocab_size missing in its "
            "text_config."
        )
    sizes = config["image_sizes"]
    if not isinstance(sizes, list) or not sizes or any(size != IMAGE_SIZE for size in sizes):
        raise CheckpointError(
            f"{folder} reads images of {sizes} pixels; only {IMAGE_SIZE} is supported."
        )
    return config, preprocessor


def _tokenizer(folder: Path) -> Tokenizer:
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        raise MissingAssetError(
            f"No {TOKENIZER_FILE} in {folder}, which encodes the question: download it again."
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(f"{file} is damaged ({error}): download it again.") from error


def _projector_of_state(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the projector of proprioception, which training writes in a separate file.

    Empty without such a file.
    """
    files = sorted(folder.glob(STATE_PROJECTOR_FILE))
    if not files:
        return {}
    if len(files) > 1:
        raise CheckpointError(
            f"{folder} has several projectors of proprioception, "
            f"{', '.join(file.name for file in files)}: keep one."
        )
    try:
        check_stored(files[0])
        tensors = torch.load(files[0], map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{files[0]} cannot be read ({error}). Copy or download it again."
        ) from error
    return {
        f"{STATE_PROJECTOR}{name.removeprefix('module.')}": tensor
        for name, tensor in tensors.items()
    }


def _check_environment(
    spec: EnvSpec, *, images: int, state: Quantiles | None, folder: Path
) -> None:
    """Raise ConfigError unless observations and actions are those of the checkpoint."""
    spaces = (
        spec.observation_space.spaces
        if isinstance(spec.observation_space, gymnasium.spaces.Dict)
        else {}
    )
    cameras = (spaces[IMAGES].shape or (0,))[0] if IMAGES in spaces else 0
    if not 1 <= images <= cameras:
        raise ConfigError(
            f"The policy in {folder} reads actor_rollout_ref.model.options.images={images} "
            f"cameras, and environment {spec.name!r} has {cameras}."
        )
    felt = int(np.prod(spaces[PROPRIOCEPTION].shape or (0,))) if PROPRIOCEPTION in spaces else 0
    if state is not None and felt != len(state.low):
        raise ConfigError(
            f"The policy in {folder} reads {len(state.low)} numbers of proprioception, and "
            f"{spec.name!r} has {felt}."
        )
    if spec.action_space.shape != (ACTION_SIZE,):
        raise ConfigError(
            f"The policy in {folder} has the actions of LIBERO's robot, and {spec.name!r} has "
            f"{spec.action_space}."
        )
