"""Reads checkpoints of pi0 and pi0.5 as LeRobot publishes them; errors name the remedy.

`siirl.models.lerobot_folder` describes the layout. Names of weights may lack the prefix `model.`,
as in lerobot/pi0_base and lerobot/pi05_base. In published checkpoints the word embedding has the
name of the language head. Checkpoints of LeRobot 0.5 and later also have it under its own name,
which takes precedence. Sizes come from the weights: config.json only names them.

LeRobot reads PaliGemma's tokenizer from the Hub, where its licence must be accepted. siirl reads
`tokenizer.json` in the folder, or in the folder of the option `tokenizer`; a run's checkpoints
contain it.

Left out, in addition to the list in `siirl.models.lerobot_folder`: relative actions, and weights of
LeRobot before 0.4 and of openpi.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer

from envs.base import EnvSpec
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.files.paths import find
from siirl.files.weight_files import TOKENIZER_FILE
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
from siirl.models.lerobot_scales import STATE
from siirl.models.pi import Pi, Pi0, Pi05
from siirl.models.pi_network import freeze
from siirl.models.pi_parts import GemmaShape, NetworkShape, VisionShape
from siirl.models.weights import (
    PlannedWeights,
    materialise,
    plan_weights,
    stored_shapes,
    without_memory,
)
from siirl.params.policies import no_weights
from siirl.params.references import check_options

COUNTS = (
    "chunk_size",
    "n_action_steps",
    "max_state_dim",
    "max_action_dim",
    "tokenizer_max_length",
    "num_inference_steps",
)
ONLY = {
    "n_obs_steps": (1, "several observations in time"),
    "use_relative_actions": (False, "actions relative to the state"),
    "use_peft": (False, "adapters of LeRobot: merge them into the weights first"),
}
AFTER = ("unnormalizer_processor", "device_processor")
PI0 = PolicyKind(
    type="pi0",
    name="pi0",
    base="lerobot/pi0_base",
    counts=COUNTS,
    steps="num_inference_steps",
    ratios=("min_period", "max_period"),
    flags={"freeze_vision_encoder": False},
    image_size="image_resolution",
    only=ONLY,
    processors={
        "policy_preprocessor.json": (
            "rename_observations_processor",
            "to_batch_processor",
            "pi0_new_line_processor",
            "tokenizer_processor",
            "device_processor",
            "normalizer_processor",
        ),
        "policy_postprocessor.json": AFTER,
    },
)
PI05 = PolicyKind(
    type="pi05",
    name="pi0.5",
    base="lerobot/pi05_base",
    counts=COUNTS,
    steps="num_inference_steps",
    ratios=PI0.ratios,
    flags=PI0.flags,
    image_size="image_resolution",
    only=ONLY,
    processors={
        "policy_preprocessor.json": (
            "rename_observations_processor",
            "to_batch_processor",
            "normalizer_processor",
            "pi05_prepare_state_tokenizer_processor_step",
            "tokenizer_processor",
            "device_processor",
        ),
        "policy_postprocessor.json": AFTER,
    },
)
PREFIX = "model."
PALIGEMMA = f"{PREFIX}paligemma_with_expert.paligemma."
LANGUAGE = f"{PALIGEMMA}model.language_model."
VISION = f"{PALIGEMMA}model.vision_tower.vision_model."
EXPERT = f"{PREFIX}paligemma_with_expert.gemma_expert."
WORDS = f"{LANGUAGE}embed_tokens.weight"
HEAD = f"{PALIGEMMA}lm_head.weight"
Shapes = Mapping[str, tuple[int, ...]]
AnyPi = TypeVar("AnyPi", bound=Pi)


def load_pi0(folder: str | Path, spec: EnvSpec, **options: Any) -> Pi0:
    """Read a checkpoint of pi0; see `load_pi`."""
    return load_pi(PI0, lambda stored, parts: Pi0(**parts), Path(folder), spec, **options)


def load_pi05(
    folder: str | Path, spec: EnvSpec, *, pad_state: bool = False, **options: Any
) -> Pi05:
    """Read a checkpoint of pi0.5; see `load_pi`.

    Args:
        folder: Folder saved by LeRobot or exported by a run.
        spec: Spec of the environment.
        pad_state: The prompt has `max_state_dim` numbers, the last ones 0, as in LeRobot before
            0.5. openpi and later versions write only the robot's numbers.
        options: Further arguments of `load_pi`.
    """
    require_flags(pad_state=pad_state)

    def make(stored: LeRobotFolder, parts: dict[str, Any]) -> Pi05:
        size = stored.config["max_state_dim"] if pad_state else stored.sizes[STATE]
        return Pi05(padded_state=size, **parts)

    return load_pi(PI05, make, Path(folder), spec, **options)


def load_pi(
    kind: PolicyKind,
    make: Callable[[LeRobotFolder, dict[str, Any]], AnyPi],
    folder: Path,
    spec: EnvSpec,
    *,
    images: int | None = None,
    chunk_length: int | None = None,
    steps: int | None = None,
    noise: str = SDE,
    noise_level: float = NOISE_LEVEL,
    noise_std: Sequence[float] = NOISE_STD,
    train_expert_only: bool = True,  # RLinf's libero_spatial_ppo_openpi*.yaml
    freeze_vision_encoder: bool | None = None,
    tokenizer: str | None = None,
    weights: bool = True,
) -> AnyPi:
    """Read a checkpoint of pi0 or pi0.5.

    Args:
        kind: Description of the policy, pi0 or pi0.5.
        make: Makes the policy of the arguments that both share.
        folder: Folder saved by LeRobot or exported by a run.
        spec: Spec of the environment.
        images: Number of the environment's cameras that it reads, in their order; None: as many as
            the checkpoint was trained with. LeRobot masks missing cameras.
        chunk_length: Actions executed of a chunk; None: the checkpoint's `n_action_steps`.
        steps: Denoising steps; None: the checkpoint's `num_inference_steps`.
        noise: `sde` (Flow-SDE); `learnt` (Flow-Noise) and `end` add a small layer to new weights.
        noise_level: Noise level of Flow-SDE.
        noise_std: Bounds of a learnt deviation, in deviations of the data's actions.
        train_expert_only: Freeze PaliGemma; False trains all weights. The checkpoint's own flag
            belongs to imitation and is not read.
        freeze_vision_encoder: Freeze the image encoder; None: the checkpoint's value.
        tokenizer: Folder with PaliGemma's tokenizer.json; None: the folder of the weights.
        weights: False checks everything and plans to read the weights later
            (`siirl.models.weights.materialise`).

    Raises:
        MissingAssetError: A missing file.
        CheckpointError: A damaged file, another policy, or one with unsupported settings.
        ConfigError: An environment that does not fit.
        ValueError: An invalid option.
    """
    require_flags(train_expert_only=train_expert_only, freeze_vision_encoder=freeze_vision_encoder)
    stored = LeRobotFolder.read(folder, kind)
    flow = stored.flow(steps=steps, noise=noise, level=noise_level, std=noise_std)
    file = _tokenizer_file(folder, tokenizer)
    words = read_tokenizer(file)
    io_format = stored.io_format(
        spec,
        images=images,
        chunk_length=chunk_length,
        tokenizer=words,
        truncation_side="right",  # of PaliGemma's tokenizer
    )
    shape = network_shape(stored)
    _require_known(words, shape.language.vocabulary, file=file)
    parts = {
        "shape": shape,
        "io_format": io_format,
        "actions": stored.actions(spec),
        "flow": flow,
        "folder": folder,
        "tokenizer_file": file,
    }
    with without_memory():
        policy = make(stored, parts)
    of_checkpoint = stored.config["freeze_vision_encoder"]
    freeze(
        policy.model,
        expert_only=train_expert_only,
        vision=of_checkpoint if freeze_vision_encoder is None else freeze_vision_encoder,
    )
    policy.planned = _planned(policy, folder)
    if weights:
        materialise(policy, torch.device("cpu"))
    return policy


def make_pi0(spec: EnvSpec, path: str | None, /, *, weights: bool = True, **options: Any) -> Pi0:
    """`load_pi0` with the signature of `siirl.params.policies`.

    Raises:
        ConfigError: No path, since siirl ships no weights of it, or an unknown option.
    """
    check_options(options, load_pi)
    place = _require_path(path, PI0)
    require_read(options, noise=options.get("noise", SDE))
    return load_pi0(place, spec, **options, weights=weights)


def make_pi05(spec: EnvSpec, path: str | None, /, *, weights: bool = True, **options: Any) -> Pi05:
    """`load_pi05` with the signature of `siirl.params.policies`.

    Raises:
        ConfigError: No path, since siirl ships no weights of it, or an unknown option.
    """
    check_options(options, load_pi, load_pi05)
    place = _require_path(path, PI05)
    require_read(options, noise=options.get("noise", SDE))
    return load_pi05(place, spec, **options, weights=weights)


def _require_path(path: str | None, kind: PolicyKind) -> str:
    if path is None:
        raise ConfigError(f"{no_weights(kind.type)}.")
    return path


def _planned(policy: Pi, folder: Path) -> PlannedWeights:
    has_words = any(with_prefix(name) == WORDS for name in stored_shapes(folder))

    def renamed(name: str) -> str:
        return HEAD if with_prefix(name) == WORDS else with_prefix(name)

    def left_out(name: str) -> bool:
        is_deviation = name.startswith(DEVIATION) and policy.flow.noise not in LEARNING
        return is_deviation or (has_words and with_prefix(name) == HEAD)

    return plan_weights(
        policy,
        folder,
        left_out=left_out,
        renamed=renamed,
        further=new_deviation(policy, folder),
    )


def with_prefix(name: str) -> str:
    """The name of a weight in siirl, except for the word embedding."""
    return name if name.startswith((PREFIX, DEVIATION)) else PREFIX + name


def network_shape(stored: LeRobotFolder) -> NetworkShape:
    """Sizes of the network, read from the shapes of its weights.

    Raises:
        CheckpointError: Weights that are missing, or do not fit each other or config.json.
    """
    sizes = _Sizes(
        stored, {with_prefix(name): shape for name, shape in stored_shapes(stored.folder).items()}
    )
    config = stored.config
    language = sizes.gemma(LANGUAGE, words=WORDS if WORDS in sizes.shapes else HEAD)
    expert = sizes.gemma(f"{EXPERT}model.", words=f"{EXPERT}lm_head.weight")
    if (language.layers, language.head_size) != (expert.layers, expert.head_size):
        raise CheckpointError(
            f"{stored.folder}: the language model has {language.layers} layers and heads of "
            f"{language.head_size}, the action expert {expert.layers} and {expert.head_size}; both "
            "must be equal. Download the folder again."
        )
    return NetworkShape(
        vision=sizes.vision(),
        language=language,
        expert=expert,
        max_state_dim=config["max_state_dim"],
        max_action_dim=config["max_action_dim"],
        periods=(config["min_period"], config["max_period"]),
    )


class _Sizes:
    """Sizes of the parts, from the shapes of the first layer's weights."""

    def __init__(self, stored: LeRobotFolder, shapes: Shapes) -> None:
        self.stored, self.shapes = stored, shapes

    def gemma(self, prefix: str, *, words: str) -> GemmaShape:
        layer = f"{prefix}layers.0."
        rows, width = self._of(f"{layer}self_attn.q_proj.weight", axes=2)
        head_size = self._of(f"{layer}self_attn.k_proj.weight", axes=2)[0]
        if rows % head_size:
            raise CheckpointError(
                f"{self.stored.folder}: {layer}self_attn.q_proj.weight has {rows} rows, which is "
                f"not a multiple of the head size {head_size}. Download the folder again."
            )
        return GemmaShape(
            width=width,
            hidden=self._of(f"{layer}mlp.gate_proj.weight", axes=2)[0],
            layers=self._layers(f"{prefix}layers."),
            heads=rows // head_size,
            head_size=head_size,
            vocabulary=self._of(words, axes=2)[0],
        )

    def vision(self) -> VisionShape:
        patches = self._of(f"{VISION}embeddings.patch_embedding.weight", axes=4)
        places = self._of(f"{VISION}embeddings.position_embedding.weight", axes=2)[0]
        layers = f"{VISION}encoder.layers."
        shape = VisionShape(
            width=patches[0],
            hidden=self._of(f"{layers}0.mlp.fc1.weight", axes=2)[0],
            layers=self._layers(layers),
            patch=patches[2],
            image_size=math.isqrt(places) * patches[2],
        )
        size = self.stored.image_size
        if size != (shape.image_size, shape.image_size) or shape.width % shape.heads:
            raise CheckpointError(
                f"{self.stored.folder}: an image encoder of width {shape.width} for images of "
                f"{shape.image_size} pixels does not fit image_resolution={size} and "
                f"{shape.heads} heads."
            )
        return shape

    def _layers(self, prefix: str) -> int:
        numbers = {
            name.removeprefix(prefix).split(".")[0]
            for name in self.shapes
            if name.startswith(prefix)
        }
        return 1 + max((int(number) for number in numbers if number.isdigit()), default=0)

    def _of(self, name: str, *, axes: int) -> tuple[int, ...]:
        shape = self.shapes.get(name)
        if shape is None or len(shape) != axes:
            found = "no" if shape is None else f"{shape} as"
            raise CheckpointError(
                f"{self.stored.folder} has {found} {name}: it is not a complete "
                f"{self.stored.kind.name} of LeRobot 0.4 or later. Download it again."
            )
        return shape


def _tokenizer_file(folder: Path, asked: str | None) -> Path:
    file = (folder if asked is None else find(asked)) / TOKENIZER_FILE
    if not file.is_file():
        raise MissingAssetError(
            f"No {TOKENIZER_FILE} in {file.parent}: LeRobot reads PaliGemma's from the Hub. Copy "
            "it there from google/paligemma-3b-pt-224, or name its folder by "
            "actor_rollout_ref.model.options.tokenizer."
        )
    return file


def _require_known(words: Tokenizer, vocabulary: int, *, file: Path) -> None:
    most = max(words.get_vocab().values(), default=0)
    if most >= vocabulary:
        raise CheckpointError(
            f"{file} has a token {most}, but the policy has {vocabulary} tokens: it is another "
            "model's tokenizer. Copy the one of google/paligemma-3b-pt-224."
        )
