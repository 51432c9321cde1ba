"""Reads checkpoints of OpenVLA and OpenVLA-OFT as published; errors name the remedy.

A folder has config.json, safetensors files with the names of `OpenVLAForActionPrediction`,
tokenizer.json, preprocessor_config.json, and statistics (dataset_statistics.json, or norm_stats in
config.json). OpenVLA-OFT may also have the projector of proprioception and the regression head, in
separate files. A run's checkpoints have the same layout, with all weights in one file.

The files of the first OpenVLA and of an OpenVLA-OFT with action tokens look alike: weights and
configuration have the same names, and no entry says how actions were trained. The model's name in
the configuration (`openvla`, `openvla_oft`) therefore decides.
"""

import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tokenizers import Tokenizer

from envs.archives import check_stored
from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from envs.libero.openvla_conventions import BINS, IMAGE_SIZE, Quantiles, read_statistics
from envs.libero.suites import ACTION_SIZE
from siirl.errors import CheckpointError, ConfigError, MissingAssetError, UnknownNameError
from siirl.files.documents import read_object
from siirl.files.weight_files import CONFIG_FILE, PREPROCESSOR_FILE, TOKENIZER_FILE
from siirl.models.action_tokenizer import Bounds
from siirl.models.openvla import OpenVLA
from siirl.models.openvla_oft import DEVIATION, OpenVLAOFT, OpenVLARegression
from siirl.models.openvla_policy import OpenVLANumbers, OpenVLAPolicy, OpenVLATokenizer, Parts
from siirl.models.openvla_vision import VisionEncoder, encoder_shape
from siirl.models.timm_vision import TimmEncoder
from siirl.models.weights import materialise, plan_weights, stored_shapes, without_memory
from siirl.params.policies import no_weights
from siirl.params.references import check_options

CONFIG_KEYS = ("timm_model_ids", "image_sizes", "text_config", "pad_token_id", "pad_to_multiple_of")
VISION = "vision_backbone."
OWN = "own"
VISIONS = (OWN, "timm")
FREQUENCIES = "rotary_emb.inv_freq"
STATE_PROJECTOR = "proprio_projector."
ACTION_HEAD = "action_head."
SEPARATE = {
    STATE_PROJECTOR: "proprio_projector--*_checkpoint.pt",
    ACTION_HEAD: "action_head--*_checkpoint.pt",
}
"""Modules that training writes in separate files: prefix of their weights' names, and the file."""
FILM = "vision_backbone--*_checkpoint.pt"
REGRESSION = "model."
"""Prefix of the names in a regression head; a diffusion head has another prefix."""
# in the middle of RLinf's bounds for pi0 (`noise_logvar_range`, 0.08 to 0.16); not tuned
ACTION_STD = 0.12
UNIT_BOUNDS: Bounds = {"low": (-1.0,) * ACTION_SIZE, "high": (1.0,) * ACTION_SIZE}


def load_openvla_oft(
    folder: str | Path,
    spec: EnvSpec,
    *,
    images: int = 1,
    statistics: str | None = None,
    question_length: int = 96,
    recompute: bool = True,
    vision: str = OWN,
    action_std: float | None = None,
    weights: bool = True,
) -> OpenVLAOFT | OpenVLARegression:
    """Read a checkpoint of OpenVLA-OFT, with action tokens or a regression head.

    Args:
        folder: Folder in the published layout, or exported by a run.
        spec: Spec of the environment, which must have LIBERO's actions.
        images: Number of the environment's cameras that it reads, in their order: 1 for
            SimpleVLA-RL's checkpoints, 2 with the wrist camera.
        statistics: Data set whose ranges scale numbers, or its suite (`spatial`, `10`); None: the
            checkpoint's only one.
        question_length: Tokens that questions are padded to.
        recompute: Recompute activations in the backward pass instead of keeping them.
        vision: Modules of the image encoders: `own`, or `timm` (`siirl.models.timm_vision`).
        action_std: Initial deviation of a regression head's numbers (in [-1, 1]); a run's
            checkpoint has a learnt one. None: `ACTION_STD`.
        weights: False checks everything and plans to read 15 GB of weights later
            (`siirl.models.weights.materialise`).

    Raises:
        MissingAssetError: A missing file.
        CheckpointError: A damaged file, or another model.
        ConfigError: An environment or an option that does not fit.
    """
    files = _read(Path(folder), statistics=statistics)
    if any(files.folder.glob(FILM)):
        raise CheckpointError(
            f"{folder} has {FILM}: its encoders are modulated by the instruction (FiLM), which is "
            "not supported. Choose a checkpoint without FiLM."
        )
    state = files.state if files.has(STATE_PROJECTOR) else None
    if files.has(STATE_PROJECTOR) and state is None:
        raise CheckpointError(
            f"{folder} reads proprioception, but its statistics lack its ranges ('proprio')."
        )
    _check_environment(spec, images=images, state=state, folder=files.folder)
    regression = files.has(ACTION_HEAD)
    _check_deviation(action_std, regression=regression, folder=files.folder)
    std = ACTION_STD if action_std is None else action_std
    with without_memory():
        parts = files.parts(question_length=question_length, recompute=recompute, vision=vision)
        policy: OpenVLAOFT | OpenVLARegression
        if regression:
            numbers = OpenVLANumbers(**UNIT_BOUNDS, quantiles=files.actions)
            policy = OpenVLARegression(
                parts, action_tokenizer=numbers, proprioception=state, images=images, std=std
            )
        else:
            policy = OpenVLAOFT(
                parts, action_tokenizer=files.tokens(), proprioception=state, images=images
            )
    if regression and DEVIATION not in files.stored:
        files.separate[DEVIATION] = torch.full((ACTION_SIZE,), math.log(std))
    _plan(policy, files, weights=weights)
    return policy


def load_openvla(
    folder: str | Path,
    spec: EnvSpec,
    *,
    statistics: str | None = None,
    question_length: int = 96,
    recompute: bool = True,
    vision: str = OWN,
    weights: bool = True,
) -> OpenVLA:
    """Read a checkpoint of the first OpenVLA, which generates one action token after another.

    Arguments and errors are those of `load_openvla_oft`; the policy reads one camera.
    """
    files = _read(Path(folder), statistics=statistics)
    parallel = [name.rstrip(".") for name in SEPARATE if files.has(name)]
    if parallel:
        raise CheckpointError(
            f"{folder} has a {' and a '.join(parallel)}, which only OpenVLA-OFT has: choose "
            "model=openvla_oft."
        )
    _check_environment(spec, images=1, state=None, folder=files.folder)
    with without_memory():
        parts = files.parts(question_length=question_length, recompute=recompute, vision=vision)
        policy = OpenVLA(parts, action_tokenizer=files.tokens())
    _plan(policy, files, weights=weights)
    return policy


def make_openvla_oft(
    spec: EnvSpec, path: str | None, /, *, weights: bool = True, **options: Any
) -> OpenVLAOFT | OpenVLARegression:
    """`load_openvla_oft` with the signature of `siirl.params.policies`.

    Raises:
        ConfigError: No path, since there are no new weights of 7B parameters, or an unknown option.
    """
    check_options(options, load_openvla_oft)
    return load_openvla_oft(_required(path, "openvla_oft"), spec, **options, weights=weights)


def make_openvla(
    spec: EnvSpec, path: str | None, /, *, weights: bool = True, **options: Any
) -> OpenVLA:
    """`load_openvla` with the signature of `siirl.params.policies`; errors are those of
    `make_openvla_oft`.
    """
    check_options(options, load_openvla)
    return load_openvla(_required(path, "openvla"), spec, **options, weights=weights)


def _required(path: str | None, model: str) -> str:
    if path is None:
        raise ConfigError(f"{no_weights(model)}.")
    return path


@dataclass(frozen=True)
class Files:
    """Contents of a checkpoint's files."""

    folder: Path
    config: dict[str, Any]
    preprocessor: dict[str, Any]
    stored: dict[str, tuple[int, ...]]
    """Shapes in the safetensors files."""
    separate: dict[str, torch.Tensor]
    """Weights from separate files, by name in the policy."""
    actions: Quantiles
    state: Quantiles | None

    def has(self, module: str) -> bool:
        """Whether the checkpoint has weights of a module."""
        return any(name.startswith(module) for name in (*self.stored, *self.separate))

    def tokens(self) -> OpenVLATokenizer:
        """Coding of actions as tokens."""
        text = self.config["text_config"]
        vocabulary = int(text["vocab_size"]) - int(self.config["pad_to_multiple_of"])
        return OpenVLATokenizer(
            bins=BINS, **UNIT_BOUNDS, quantiles=self.actions, vocabulary=vocabulary
        )

    def parts(self, *, question_length: int, recompute: bool, vision: str) -> Parts:
        """The parts from which every form is built."""
        encoders = _encoders(self.config["timm_model_ids"], vision=vision, recompute=recompute)
        return Parts(
            config=self.config,
            preprocessor=self.preprocessor,
            tokenizer=_tokenizer(self.folder),
            question_length=question_length,
            recompute=recompute,
            folder=self.folder,
            encoders=encoders,
        )


def _read(folder: Path, *, statistics: str | None) -> Files:
    config, preprocessor = _described(folder)
    separate: dict[str, torch.Tensor] = {}
    for prefix, pattern in SEPARATE.items():
        separate |= _separate_module(folder, prefix, pattern)
    heads = [name for name in separate if name.startswith(ACTION_HEAD)]
    if any(not name.startswith(f"{ACTION_HEAD}{REGRESSION}") for name in heads):
        raise CheckpointError(
            f"{folder} has an action head with {heads[0].removeprefix(ACTION_HEAD)}: it is not a "
            "regression head (possibly a diffusion head) and is not supported. Choose a checkpoint "
            "that was fine-tuned with the L1 loss, or to generate actions as tokens."
        )
    try:
        actions, state = read_statistics(folder, data=statistics)
    except ValueError as error:
        raise CheckpointError(
            f"{error} (actor_rollout_ref.model.options.statistics={statistics})"
        ) from error
    return Files(folder, config, preprocessor, stored_shapes(folder), separate, actions, state)


def _plan(policy: OpenVLAPolicy, files: Files, *, weights: bool) -> None:
    """Compare the weights with the policy, and read them if requested."""
    expected = policy.state_dict()
    policy.planned = plan_weights(
        policy,
        files.folder,
        left_out=lambda name: name not in expected and unused(name),
        further=files.separate,
    )
    if weights:
        materialise(policy, torch.device("cpu"))


def _check_deviation(std: float | None, *, regression: bool, folder: Path) -> None:
    """Raise for a deviation that is invalid or not read."""
    key = "actor_rollout_ref.model.options.action_std"
    if std is not None and not regression:
        raise ConfigError(
            f"{key}={std} is read for a regression head, but the policy in {folder} has action "
            "tokens: leave it out."
        )
    if std is not None and not (type(std) in (int, float) and 0 < std < math.inf):
        raise ValueError(f"action_std={std!r} must be a positive number.")


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

    These are an encoder's last block and the layers after it, and the rotary frequencies that older
    Llama checkpoints hold.
    """
    return name.startswith(VISION) or name.endswith(FREQUENCIES)


def _described(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and preprocessor_config.json of a supported checkpoint."""
    contents = []
    for name, keys in ((CONFIG_FILE, CONFIG_KEYS), (PREPROCESSOR_FILE, ("means", "stds"))):
        if not (folder / name).is_file():
            raise MissingAssetError(
                f"No {name} in {folder}. Set actor_rollout_ref.model.path to the whole folder of "
                "an OpenVLA."
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


def _separate_module(folder: Path, prefix: str, pattern: str) -> dict[str, torch.Tensor]:
    """Weights of a module that training writes to a separate file, by their names in the policy.

    Empty without such a file.
    """
    files = sorted(folder.glob(pattern))
    if not files:
        return {}
    if len(files) > 1:
        raise CheckpointError(
            f"{folder} has several files {pattern}, {', '.join(file.name for file in files)}: "
            "keep one."
        )
    try:
        check_stored(files[0])
        tensors = torch.load(files[0], map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{files[0]} cannot be read ({error}). Copy or download it again."
        ) from error
    return {f"{prefix}{name.removeprefix('module.')}": tensor for name, tensor in tensors.items()}


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
            f"cameras, but environment {spec.name!r} has {cameras}."
        )
    felt = int(np.prod(spaces[PROPRIOCEPTION].shape or (0,))) if PROPRIOCEPTION in spaces else 0
    if state is not None and felt != len(state.low):
        raise ConfigError(
            f"The policy in {folder} reads {len(state.low)} numbers of proprioception, but "
            f"{spec.name!r} has {felt}."
        )
    if spec.action_space.shape != (ACTION_SIZE,):
        raise ConfigError(
            f"The policy in {folder} has the actions of LIBERO's robot, but {spec.name!r} has "
            f"{spec.action_space}."
        )
