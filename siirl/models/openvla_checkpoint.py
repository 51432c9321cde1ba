"""Reads checkpoints of OpenVLA-OFT as their authors publish them, and says in a sentence what is
wrong with one that cannot be used.

A folder has config.json, safetensors files with the names of `OpenVLAForActionPrediction`,
tokenizer.json, preprocessor_config.json, dataset_statistics.json and, where proprioception is read,
the projector of it in a file of its own. A run's checkpoints have the same layout, with all weights
in one file. Reinforcement learning needs a policy that says actions as tokens (SimpleVLA-RL, arXiv
2509.09674, fine-tunes such): one with a regression head has no distribution to draw from and is
refused. The first OpenVLA, which writes one token after the other, has the same files, and is not
what is run here.
"""

import pickle
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
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.models.openvla_oft import PREPROCESSOR_FILE, TOKENIZER_FILE, OpenVLAOFT, OpenVLATokenizer
from siirl.models.weights import CONFIG_FILE, load_weights, stored_shapes
from siirl.params.documents import read_object

CONFIG_KEYS = ("timm_model_ids", "image_sizes", "text_config", "pad_token_id", "pad_to_multiple_of")
VISION, FREQUENCIES = "vision_backbone.", "rotary_emb.inv_freq"
STATE_PROJECTOR, STATE_PROJECTOR_FILE = "proprio_projector.", "proprio_projector--*_checkpoint.pt"
ACTION_HEAD = "action_head--*_checkpoint.pt"


def load_openvla_oft(
    folder: str | Path,
    spec: EnvSpec,
    *,
    images: int = 1,
    statistics: str | None = None,
    question_length: int = 96,
    recompute: bool = True,
    weights: bool = True,
) -> OpenVLAOFT:
    """Read a checkpoint of OpenVLA-OFT whose actions are tokens.

    Args:
        folder: As published, or as a run of ours exports it.
        spec: Of the environment, which must act as LIBERO does.
        images: How many of the environment's cameras it looks through, in their order: 1 for
            SimpleVLA-RL's, 2 where the wrist was seen.
        statistics: Data set by whose ranges numbers are scaled, or its suite: `spatial`, `10`;
            None: the only one that the checkpoint has.
        question_length: Tokens that questions are padded to.
        recompute: Compute activations again in the backward pass instead of keeping them.
        weights: False leaves them out: who only asks whether everything fits need not wait for 15
            GB.

    Raises:
        MissingAssetError: A file that is not there.
        CheckpointError: One that is damaged, of another model, or of a policy that puts out numbers
            instead of tokens.
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
            f"{folder} reads proprioception, and its statistics have no ranges of it ('proprio')."
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
        )
    expected = policy.state_dict()
    load_weights(
        policy,
        folder,
        left_out=lambda name: name not in expected and unused(name),
        further=projector,
        weights=weights,
    )
    return policy


def make_openvla_oft(
    spec: EnvSpec, path: str | None, *, weights: bool = True, **options: Any
) -> OpenVLAOFT:
    """`load_openvla_oft` as `siirl.params.policies` calls it; ConfigError without a path: there are
    no new weights of 7B parameters.
    """
    if path is None:
        raise ConfigError(
            "model=openvla_oft has no weights of its own: give actor_rollout_ref.model.path= a checkpoint's folder."
        )
    return load_openvla_oft(path, spec, **options, weights=weights)


def unused(name: str) -> bool:
    """Whether a checkpoint's weight is one that no pass reads: an encoder's last block and what
    follows it, an old Llama's frequencies.
    """
    return name.startswith(VISION) or name.endswith(FREQUENCIES)


def _described(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and preprocessor_config.json of a checkpoint that this class can run."""
    heads = sorted(folder.glob(ACTION_HEAD))
    if heads:
        raise CheckpointError(
            f"{folder} has {heads[0].name}: it puts out numbers and no tokens, so there is no probability to learn from. Take a checkpoint "
            "that was fine-tuned to say actions as tokens (of SimpleVLA-RL, for example)."
        )
    contents = []
    for name, keys in ((CONFIG_FILE, CONFIG_KEYS), (PREPROCESSOR_FILE, ("means", "stds"))):
        if not (folder / name).is_file():
            raise MissingAssetError(
                f"No {name} in {folder}. Give actor_rollout_ref.model.path= the whole folder of an OpenVLA-OFT."
            )
        content = read_object(folder / name, remedy="Download it again.")
        missing = [key for key in keys if key not in content]
        if missing:
            raise CheckpointError(
                f"{folder / name} does not describe an OpenVLA: there is no {', '.join(missing)} in it."
            )
        contents.append(content)
    config, preprocessor = contents
    if not isinstance(config["text_config"], dict) or "vocab_size" not in config["text_config"]:
        raise CheckpointError(
            f"{folder / CONFIG_FILE} does not describe an OpenVLA: there is no vocab_size in its text_config."
        )
    sizes = config["image_sizes"]
    if not isinstance(sizes, list) or not sizes or any(size != IMAGE_SIZE for size in sizes):
        raise CheckpointError(
            f"{folder} sees images of {sizes} pixels; only {IMAGE_SIZE} is known here."
        )
    return config, preprocessor


def _tokenizer(folder: Path) -> Tokenizer:
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        raise MissingAssetError(
            f"No {TOKENIZER_FILE} in {folder}: without it no question can be asked."
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library knows no other
        raise CheckpointError(f"{file} is damaged ({error}): download it again.") from error


def _projector_of_state(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the projector of proprioception, from the file of its own that training wrote;
    none where there is no such file.
    """
    files = sorted(folder.glob(STATE_PROJECTOR_FILE))
    if not files:
        return {}
    if len(files) > 1:
        raise CheckpointError(
            f"{folder} has several projectors of proprioception, {', '.join(file.name for file in files)}: leave one."
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
    """Raise ConfigError unless observations and actions are those that the checkpoint was made for."""
    spaces = (
        spec.observation_space.spaces
        if isinstance(spec.observation_space, gymnasium.spaces.Dict)
        else {}
    )
    cameras = (spaces[IMAGES].shape or (0,))[0] if IMAGES in spaces else 0
    if not 1 <= images <= cameras:
        raise ConfigError(
            f"The policy in {folder} looks through actor_rollout_ref.model.options.images={images} cameras, and environment "
            f"{spec.name!r} has {cameras}."
        )
    felt = int(np.prod(spaces[PROPRIOCEPTION].shape or (0,))) if PROPRIOCEPTION in spaces else 0
    if state is not None and felt != len(state.low):
        raise ConfigError(
            f"The policy in {folder} reads {len(state.low)} numbers of proprioception, and {spec.name!r} has {felt}."
        )
    if spec.action_space.shape != (ACTION_SIZE,):
        raise ConfigError(
            f"The policy in {folder} acts as LIBERO's robot does, and {spec.name!r} in {spec.action_space}."
        )
