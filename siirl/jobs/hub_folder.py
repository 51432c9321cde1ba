"""Writes a policy as a folder for the Hugging Face Hub, from a checkpoint or a policy folder.

    README.md               model card: results, command, versions, data, licence
    config.json             and other files of the policy, tokenizer included
    model.safetensors       or several files with model.safetensors.index.json
    siirl_config.yaml       configuration of the run

A language model has transformers' layout. An OpenVLA-OFT has its authors' layout: the projector of
proprioception is in a separate file, and weights that no pass reads come from the published
checkpoint. A SmolVLA, pi0 or pi0.5 has LeRobot's layout, without the layer of learnt noise. LoRA
adapters are merged. Weights are read and written one tensor at a time.
Left out: the upload (`hf upload`), and the critic.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from siirl import interrupts
from siirl.engine.training.tensor_files import (
    Types,
    WeightSource,
    size_of,
    write_index,
    write_tensors_in_turn,
)
from siirl.errors import CheckpointError, ConfigError
from siirl.files.documents import read_json, read_object
from siirl.files.weight_files import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE, weight_files
from siirl.jobs.model_card import Card, is_text, model_card, read_training
from siirl.jobs.policy_place import locate
from siirl.models.adapters import (
    ADAPTER,
    ADAPTER_FILE,
    merged,
    name_without_adapters,
    stored_adapters,
)
from siirl.models.flow_vla import DEVIATION, PROCESSORS, processor_files
from siirl.models.openvla_checkpoint import SEPARATE, unused
from siirl.models.openvla_oft import DEVIATION as OPENVLA_DEVIATION
from siirl.models.pretrained import model_class, read_config
from siirl.models.smolvla import VLM_FOLDER
from siirl.models.stored_tensors import StoredTensors
from siirl.params.model_args import LoraArguments

CARD_FILE = "README.md"
RUN_CONFIG_FILE = "siirl_config.yaml"
UNREAD = "vision_backbone.featurizer.norm.weight"
"""A weight of OpenVLA that no pass reads."""
COMPANIONS = (".json", ".jinja", ".model", ".txt", ".py")
"""Endings of files that are copied along with weights: configuration, tokenizer, code."""


class MergedWeights:
    """Weights of a model with LoRA adapters, in the form of a model without adapters.

    Args:
        stored: Under the names of the model with adapters.
        lora: Settings of the adapters.
        transposed: Layers whose weight is [in, out].
    """

    def __init__(
        self, stored: WeightSource, lora: LoraArguments, *, transposed: Collection[str]
    ) -> None:
        self._stored = stored
        self._lora = lora
        self._transposed = transposed
        self._names = {
            plain: name
            for name in stored.types
            if (plain := name_without_adapters(name)) is not None
        }
        self.types = {plain: stored.types[name] for plain, name in self._names.items()}

    def whole(self, name: str) -> torch.Tensor:
        """A weight, with its adapter merged if it has one."""
        stored = self._names[name]
        layer = stored.removesuffix(".base_layer.weight")
        if layer == stored:
            return self._stored.whole(stored)
        adapter = [f"{layer}.{matrix}.{ADAPTER}.weight" for matrix in ("lora_A", "lora_B")]
        parts = {part: self._stored.whole(part) for part in (stored, *adapter)}
        return merged(parts, self._lora, transposed=self._transposed)[name]


class JoinedWeights:
    """Tensors of several sources; earlier sources take precedence."""

    def __init__(self, *sources: WeightSource) -> None:
        self._of: dict[str, WeightSource] = {}
        for source in reversed(sources):
            self._of |= dict.fromkeys(source.types, source)
        self.types = {name: source.types[name] for name, source in self._of.items()}

    def whole(self, name: str) -> torch.Tensor:
        """See `WeightSource.whole`."""
        return self._of[name].whole(name)


class SomeWeights:
    """The tensors of a source with some of its names."""

    def __init__(self, source: WeightSource, names: Collection[str]) -> None:
        self.types = {name: place for name, place in source.types.items() if name in names}
        self.whole = source.whole


def write_hub_folder(
    checkpoint: Path,
    output: Path,
    *,
    dtype: torch.dtype | None = None,
    most_bytes: int,
    licence: str,
    base: Path | None = None,
) -> Path:
    """Write the folder, which appears when it is complete.

    Args:
        checkpoint: A run folder, a checkpoint, or a policy folder.
        output: The folder; new or empty.
        dtype: Type of the floating-point weights; None: as they are stored.
        most_bytes: Size of a weight file, unless one tensor is larger.
        licence: Identifier of the model card, for example `apache-2.0`.
        base: The published OpenVLA-OFT that training began from; None: the run's
            `actor_rollout_ref.model.path`.

    Raises:
        CheckpointError: No policy, or a damaged one.
        ConfigError: `output` is not empty, or the published weights are missing or not read.
        OSError: `output` cannot be written.
    """
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output} is a file: name a new folder.")
    if output.is_dir() and any(output.iterdir()):
        raise ConfigError(f"--output {output} is not empty: name a new folder.")
    policy, config_file, group = locate(checkpoint)
    if group is not None:  # the card describes the run's lowest group
        config_file = None
    if not (policy / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{policy} has no config.json, as the folder of your own policy: nothing but your "
            "function reads its weights. actor_rollout_ref.model.path= passes it the folder."
        )
    description = read_object(policy / CONFIG_FILE, remedy="Copy or download the folder again.")
    _check_kind(policy, description)
    published_apart = description.get("model_type") == "openvla"
    if base is not None and not published_apart:
        raise ConfigError(f"--base {base} is read for an OpenVLA-OFT only: leave it out.")
    training = read_training(config_file, checkpoint=policy.parent)
    lora = stored_adapters(policy)
    weights = _stored_weights(policy)
    if lora is not None:
        weights = MergedWeights(weights, lora, transposed=_transposed(description))
    with _appearing(output) as folder:
        if published_apart:
            published = base or (training and training.base_folder) or policy
            copy_companions(published, folder)
            weights = with_unread_weights(weights, published=published)
            write_separate_modules(weights, folder, published=published, dtype=dtype)
            apart = (*SEPARATE, OPENVLA_DEVIATION)
            names = [name for name in weights.types if not name.startswith(apart)]
            weights = SomeWeights(weights, names)
        if any(policy.glob(PROCESSORS[0])):
            copy_processors(policy, folder)
            most_bytes = sys.maxsize  # LeRobot reads one file
            names = [name for name in weights.types if not name.startswith(DEVIATION)]
            weights = SomeWeights(weights, names)
        copy_companions(policy, folder)
        write_weights(weights, folder, dtype=dtype, most_bytes=most_bytes)
        if dtype is not None:
            _name_type(folder / CONFIG_FILE, dtype)
        card = Card(name=output.name, description=description, licence=licence, training=training)
        (folder / CARD_FILE).write_text(model_card(card), encoding="utf-8")
        if config_file is not None:
            shutil.copyfile(config_file, folder / RUN_CONFIG_FILE)
    return output


def _check_kind(policy: Path, description: Mapping[str, Any]) -> None:
    """Refuse a folder of weights that is not a policy: a video encoder, a classifier.

    Raises:
        ConfigError: The message names what the folder holds.
    """
    if {"model", "pooling"} <= description.keys():
        raise ConfigError(
            f"RUN={policy} is a video encoder (reward.encoder), not a policy: name a run folder, a "
            "checkpoint, or a policy folder."
        )
    if is_text(description):
        read_config(str(policy), trust_remote_code=False, place="RUN")


@contextmanager
def _appearing(output: Path) -> Iterator[Path]:
    """A folder that gets its name when the block ends, and is removed if it fails."""
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))

    def remove() -> str:
        shutil.rmtree(unfinished, ignore_errors=True)
        return ""

    with interrupts.final_message(remove):
        try:
            yield unfinished
            unfinished.chmod(0o755)  # mkdtemp creates folders with mode 0700
            unfinished.rename(output)
        finally:
            remove()


def copy_companions(source: Path, folder: Path) -> None:
    """Copy configuration, tokenizer and code that lie beside weights.

    Raises:
        CheckpointError: A damaged file of JSON.
    """
    for file in sorted(source.iterdir()):
        if file.suffix in COMPANIONS and file.name not in (INDEX_FILE, ADAPTER_FILE):
            if file.suffix == ".json":
                read_json(file, remedy="Copy or download it again.")
            shutil.copyfile(file, folder / file.name)


def copy_processors(source: Path, folder: Path) -> None:
    """Copy a SmolVLA's statistics, and its vision-language model's configuration and tokenizer.

    LeRobot reads the latter from the Hub.
    """
    for file in processor_files(source):
        shutil.copyfile(file, folder / file.name)
    if (source / VLM_FOLDER).is_dir():
        shutil.copytree(source / VLM_FOLDER, folder / VLM_FOLDER)


def with_unread_weights(weights: WeightSource, *, published: Path) -> WeightSource:
    """Add the weights of the published checkpoint that no pass reads.

    Raises:
        ConfigError: Neither has them.
    """
    files = StoredTensors(weight_files(published))
    unread = [name for name in files.types if unused(name) and name not in weights.types]
    whole = JoinedWeights(weights, SomeWeights(files, unread))
    if UNREAD not in whole.types:
        raise ConfigError(
            f"{published} has no {UNREAD}: the published layout has the encoders' last blocks and "
            "norms, which siirl does not load. Name the published checkpoint by --base FOLDER."
        )
    return whole


def write_separate_modules(
    weights: WeightSource, folder: Path, *, published: Path, dtype: torch.dtype | None
) -> None:
    """Write an OpenVLA-OFT's separate modules as its authors do: `module.` before each name."""
    for prefix, pattern in SEPARATE.items():
        found = sorted(published.glob(pattern))
        name = found[0].name if found else pattern.replace("*", "latest")
        tensors = {
            f"module.{each.removeprefix(prefix)}": _cast(weights.whole(each), dtype)
            for each in weights.types
            if each.startswith(prefix)
        }
        if not tensors and found:  # published `weights` already have the file
            loaded = torch.load(found[0], map_location="cpu", weights_only=True)
            tensors = {each: _cast(tensor, dtype) for each, tensor in loaded.items()}
        if tensors:
            torch.save(tensors, folder / name)


def _cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)


def write_weights(
    weights: WeightSource, folder: Path, *, dtype: torch.dtype | None, most_bytes: int
) -> None:
    """Write safetensors files of at most `most_bytes`, one tensor at a time.

    Several files get an index.

    Raises:
        OSError: They cannot be written.
    """
    types = {
        name: (dtype if dtype is not None and stored.is_floating_point else stored, shape)
        for name, (stored, shape) in weights.types.items()
    }
    parts = _parts(types, most_bytes)
    names = [
        f"model-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)
    ]
    for name, part in zip([WEIGHTS_FILE] if len(parts) == 1 else names, parts, strict=True):
        in_turn = ((each, _cast(weights.whole(each), dtype)) for each in part)
        write_tensors_in_turn(folder / name, {each: types[each] for each in part}, in_turn)
    if len(parts) > 1:
        of_files = zip(names, parts, strict=True)
        write_index(folder, {name: {each: types[each] for each in part} for name, part in of_files})


def _parts(types: Types, most_bytes: int) -> list[list[str]]:
    """Names by file, in their order."""
    parts: list[list[str]] = [[]]
    size = 0
    for name, place in types.items():
        if parts[-1] and size + size_of(*place) > most_bytes:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += size_of(*place)
    return parts


def _stored_weights(policy: Path) -> WeightSource:
    """The weights of a policy folder or an engine's folder.

    Raises:
        CheckpointError: The folder holds no weights, or damaged ones.
    """
    files = weight_files(policy)
    if not files:
        raise CheckpointError(f"{policy} has no *.safetensors: name another checkpoint.")
    return StoredTensors(files)


def _transposed(description: Mapping[str, Any]) -> list[str]:
    """Layers of a language model whose weight is [in, out]: GPT-2's; none of other policies."""
    if not is_text(description):
        return []
    from transformers import AutoConfig

    config = AutoConfig.for_model(**description)
    with torch.device("meta"):
        model = model_class(config).from_config(config)
    return [name for name, part in model.named_modules() if type(part).__name__ == "Conv1D"]


def _name_type(file: Path, dtype: torch.dtype) -> None:
    """Set the dtype in which transformers loads the weights, if config.json has one."""
    content = read_object(file, remedy="Copy the folder again.")
    for key in ("dtype", "torch_dtype"):
        if key in content:
            content[key] = str(dtype).removeprefix("torch.")
    file.write_text(json.dumps(content, indent=2) + "\n")
