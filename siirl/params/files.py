"""Files that a run needs: policy folders, weights, demonstrations, a checkpoint to go on from. Looked at without torch."""

import json
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path

from siirl.errors import CheckpointError, ConfigError, MissingAssetError, SiirlError
from siirl.params import sizes
from siirl.params.documents import is_name, read_json
from siirl.params.paths import find
from siirl.params.policies import LANGUAGE_MODEL
from siirl.params.training_args import SiiRLArguments

SHIPPED_ENCODERS = {"tiny": "assets/vjepa_tiny"}
BUILT_IN_ENCODERS = ("random", "pixels")  # baselines without weights
NEWEST_CHECKPOINT = "checkpoints/latest"  # in a run folder: the pointer that siirl.dag_worker.checkpoint keeps
KEPT_CHECKPOINTS = 3  # of a run: one to resume from, and two should it have learnt something wrong
WHOLE_FILE = "model.safetensors"
INDEX_FILE = f"{WHOLE_FILE}.index.json"  # of weights in several files: which of them holds which (Hugging Face's layout)
MOST_HEADER_BYTES = 100_000_000  # the safetensors library reads no longer header either
HEADER_LENGTH = 8  # bytes of a safetensors file that hold the length of its header
LANGUAGE_MODEL_FOLDER = "a folder with config.json, model.safetensors and a tokenizer"
OWN_START = "null for the policy's own weights at the start"  # actor_rollout_ref.ref.path


def file_problems(config: SiiRLArguments) -> list[SiirlError]:
    """What is missing, or not whole."""
    try:
        return _file_problems(config)
    except OSError as error:  # a name that is too long, a folder that must not be read
        return [ConfigError(f"A path of the configuration cannot be looked at: {error.strerror} ({str(error.filename)[:200]}).")]


def _file_problems(config: SiiRLArguments) -> list[SiirlError]:
    model, reference = config.actor_rollout_ref.model, config.actor_rollout_ref.ref
    look = _language_model_folder if model.policy == LANGUAGE_MODEL else _policy_folder
    new = "take model=tiny_lm" if model.policy == LANGUAGE_MODEL else "null for new weights"
    problems = list(look(model.path, place="actor_rollout_ref.model.path", otherwise=new))
    if sizes.needs_reference(config):
        problems += look(reference.path, place="actor_rollout_ref.ref.path", otherwise=OWN_START)
    if sizes.needs_video(config) and config.reward.encoder is not None:
        problems += _encoder(config.reward.encoder)
        problems += _demonstrations(config.reward.demonstrations)
    if config.dag.workflow_file is not None and not Path(config.dag.workflow_file).is_file():
        problems.append(MissingAssetError(f"dag.workflow_file={config.dag.workflow_file}: there is no such file."))
    return problems


def check_safetensors(file: Path) -> int:
    """Compare a safetensors file's length with its own header.

    Returns:
        The number of parameters in it.

    Raises:
        CheckpointError: It is truncated, or no safetensors file.
    """
    size = file.stat().st_size
    refusal = f"{file} ({size} bytes) is not a whole safetensors file"
    with file.open("rb") as stream:
        start = stream.read(HEADER_LENGTH)
        if len(start) < HEADER_LENGTH:
            raise CheckpointError(f"{refusal}: it ends within its first {HEADER_LENGTH} bytes. Copy or make it again.")
        (length,) = struct.unpack("<Q", start)
        if length > min(size - HEADER_LENGTH, MOST_HEADER_BYTES):
            raise CheckpointError(f"{refusal}: its header alone would take {length} bytes. Copy or make it again.")
        try:
            header = json.loads(stream.read(length))
            tensors = [entry for name, entry in header.items() if name != "__metadata__"]
            expected = HEADER_LENGTH + length + max((entry["data_offsets"][1] for entry in tensors), default=0)
            parameters = sum(prod(entry["shape"]) for entry in tensors)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{refusal}: its header cannot be read ({error!r}). Copy or make it again.") from error
    if size != expected:
        raise CheckpointError(f"{refusal}: its header announces {expected} bytes. Copy or make it again.")
    return parameters


def weight_files(folder: Path) -> list[Path]:
    """The files with a model's weights in `folder`: the one, or else those that its index names, or else all there are.

    Which one wins where there are both is as in transformers.

    Raises:
        CheckpointError: An index that cannot be read, or names a file that is not there.
    """
    if (folder / WHOLE_FILE).is_file():
        return [folder / WHOLE_FILE]
    if not (folder / INDEX_FILE).is_file():
        return sorted(folder.glob("*.safetensors"))
    names = _named_by(folder / INDEX_FILE)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{folder} lacks {missing[0]}{more}: {INDEX_FILE} names {len(names)} files that hold the weights together. Copy or download "
            "what is missing."
        )
    return [folder / name for name in names]


def _named_by(index: Path) -> list[str]:
    content = read_json(index, remedy="Copy or download it again.")
    try:
        names = sorted(set(content["weight_map"].values()))
        if not names or not all(map(is_name, names)):  # each lies beside the index
            raise ValueError("it names no files of its folder")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} does not say which files hold the weights ({error!r}). Copy or download it again.") from error
    return names


def parameters_in(path: str) -> int:
    """Parameters of the weights in a policy folder; 0 where there are none."""
    return sum(check_safetensors(file) for file in weight_files(find(path)))


def learnt_tasks(path: str) -> tuple[str, ...]:
    """Tasks that the weights in a policy folder learnt, by cloning or in a run of ours; none where its config.json does not say."""
    try:
        tasks = read_json(find(path) / "config.json", remedy="")["notes"]["tasks"]
    except (CheckpointError, LookupError, TypeError):
        return ()  # a language model, an OpenVLA, a user's own policy
    return tuple(map(str, tasks)) if isinstance(tasks, list) else ()


def _policy_folder(path: str | None, *, place: str, otherwise: str) -> Iterator[SiirlError]:
    remedy = f"give a folder with config.json and model.safetensors, {otherwise}, or make one: python -m siirl.warm_start"
    return _model_folder(path, place=place, remedy=remedy)


def _language_model_folder(path: str | None, *, place: str, otherwise: str) -> Iterator[SiirlError]:
    if path is not None and not find(path).is_dir() and may_be_hub_id(path):
        return iter(())  # siirl.models.hub asks for it
    remedy = f"give {LANGUAGE_MODEL_FOLDER}, a hub id (organisation/model), or {otherwise}"
    return _model_folder(path, place=place, remedy=remedy)


def _model_folder(path: str | None, *, place: str, remedy: str) -> Iterator[SiirlError]:
    if path is None:
        return
    folder = find(path)
    if not folder.is_dir():
        yield MissingAssetError(f"{place}={path}: there is no folder {folder}; {remedy}.")
        return
    try:
        weights = weight_files(folder)
    except CheckpointError as error:
        yield CheckpointError(f"{place}: {error}")
        return
    if not (folder / "config.json").is_file() or not weights:
        missing = "config.json" if weights else "*.safetensors"
        yield MissingAssetError(f"{place}={path}: there is no {missing} in {folder}; {remedy}.")
    yield from _whole(weights, place=place)


def _whole(weights: list[Path], *, place: str) -> Iterator[SiirlError]:
    for file in weights:
        try:
            check_safetensors(file)
        except CheckpointError as error:
            yield CheckpointError(f"{place}: {error}")


def _encoder(encoder: str) -> Iterator[SiirlError]:
    if encoder in BUILT_IN_ENCODERS:
        return
    path = find(SHIPPED_ENCODERS.get(encoder, encoder))
    if encoder in SHIPPED_ENCODERS:
        weights = sorted(path.glob("*.safetensors")) if path.is_dir() else []
        if not weights:
            yield MissingAssetError(
                f"reward.encoder={encoder}: its weights are not in {path}; check out assets/ again or run python -m vjepa.train_tiny."
            )
        yield from _whole(weights, place="reward.encoder")
    elif path.is_dir() and not (path / "config.json").is_file():
        yield MissingAssetError(f"reward.encoder={encoder}: there is no config.json in {path}, so it is no folder of an encoder.")
    elif not path.exists() and not may_be_hub_id(encoder):
        known = ", ".join([*SHIPPED_ENCODERS, *BUILT_IN_ENCODERS])
        yield MissingAssetError(f"reward.encoder={encoder}: no such file or folder. Known: {known}; or a folder, a .pt file, a hub id.")


def may_be_hub_id(name: str) -> bool:
    """`organisation/model`, which only the hub can tell whether it exists."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~", "assets/")) and not name.endswith(".pt")


def _demonstrations(path: str | None) -> Iterator[SiirlError]:
    if path is not None and not find(path).exists():
        yield MissingAssetError(
            f"reward.demonstrations={path}: there is no such file; collect some with python -m siirl.warm_start, or leave it out."
        )


def find_resume(config: SiiRLArguments) -> Path | None:
    """Where to go on from: a run folder or a checkpoint as given, for `auto` the newest run with a checkpoint, None for a new start.

    Raises:
        ConfigError: The folder is there, but holds no checkpoint.
        MissingAssetError: It is not there.
    """
    resume = config.trainer.resume
    if resume is None:
        return None
    if resume == "auto":
        runs = (Path(config.trainer.output_dir).expanduser() / config.trainer.experiment_name).glob(f"*/{NEWEST_CHECKPOINT}")
        return max((pointer.parent.parent for pointer in runs), default=None)  # their names are times
    path = Path(resume).expanduser()
    if not path.is_dir():
        raise MissingAssetError(f"trainer.resume={resume}: there is no such folder. Give a run folder, a checkpoint in it, or auto.")
    if (path / "config.yaml").is_file() and not (path / NEWEST_CHECKPOINT).is_file():
        raise ConfigError(f"trainer.resume={resume}: this run has no checkpoint (there is no {NEWEST_CHECKPOINT} in it).")
    return path
