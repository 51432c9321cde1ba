"""Inspects weights in a model folder without torch: files, completeness, learnt tasks."""

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path

from siirl.errors import CheckpointError
from siirl.files.documents import is_name, read_json
from siirl.files.paths import find

# names of Hugging Face's layout, which LeRobot and siirl follow
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
PREPROCESSOR_FILE = "preprocessor_config.json"
WEIGHTS_FILE = "model.safetensors"
# index of weights in several files: the file of each weight
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
# PyTorch's own format, and its index
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
PEFT_FILE = "adapter_config.json"
# the files of the index in a checkpoint: weights that never change in a run, and all others
FROZEN_FILE = "frozen.safetensors"
TRAINED_FILE = "trained.safetensors"
MOST_HEADER_BYTES = 100_000_000  # also the limit of the safetensors library
BITS = 8  # per byte; a stored number has at least one bit
HEADER_LENGTH = 8  # bytes of a safetensors file that hold the length of its header
LANGUAGE_MODEL_FOLDER = "a folder with config.json, model.safetensors and a tokenizer"


def check_safetensors(file: Path, *, counted: Callable[[str], bool] = lambda name: True) -> int:
    """Compare a safetensors file's length with its own header.

    Args:
        file: The file.
        counted: Whether a tensor of this name is counted.

    Returns:
        The number of parameters in it.

    Raises:
        CheckpointError: It is truncated, or not a safetensors file.
    """
    if not file.is_file():  # reading a named pipe would block
        raise CheckpointError(f"{file} is not a readable file. Copy or make it again.")
    size = file.stat().st_size
    refusal = f"{file} ({size} bytes) is not a complete safetensors file"
    with file.open("rb") as stream:
        start = stream.read(HEADER_LENGTH)
        if len(start) < HEADER_LENGTH:
            raise CheckpointError(
                f"{refusal}: it ends within its first {HEADER_LENGTH} bytes. Copy or make it again."
            )
        (length,) = struct.unpack("<Q", start)
        if length > min(size - HEADER_LENGTH, MOST_HEADER_BYTES):
            raise CheckpointError(
                f"{refusal}: its header alone would take {length} bytes. Copy or make it again."
            )
        try:
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            tensors = list(header.values())
            expected = (
                HEADER_LENGTH
                + length
                + max((entry["data_offsets"][1] for entry in tensors), default=0)
            )
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                if prod(entry["shape"]) > BITS * (end - begin):
                    raise ValueError(f"{name} of shape {entry['shape']} has {end - begin} bytes")
            parameters = sum(
                prod(entry["shape"]) for name, entry in header.items() if counted(name)
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(
                f"{refusal}: its header cannot be read ({error!r}). Copy or make it again."
            ) from error
    if size != expected:
        raise CheckpointError(
            f"{refusal}: its header announces {expected} bytes. Copy or make it again."
        )
    return parameters


def weight_files(folder: Path) -> list[Path]:
    """The files with a model's weights in `folder`: the single file, else those in its index, else
    all.

    transformers has the same order, but in place of the last it reads pytorch_model.bin: there are
    none beside that.

    Raises:
        CheckpointError: An index that cannot be read, or names a missing file.
    """
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if not (folder / INDEX_FILE).is_file():
        is_pickled = any((folder / name).is_file() for name in PICKLED)
        return [] if is_pickled else sorted(folder.glob("*.safetensors"))
    names = _named_by(folder / INDEX_FILE)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{folder} lacks {missing[0]}{more}: {INDEX_FILE} names {len(names)} files that "
            "together hold the weights. Copy or download the missing ones."
        )
    return [folder / name for name in names]


def refuse_adapters(folder: Path) -> None:
    """Refuse a folder with adapters of peft, which transformers would add to the model's weights.

    Raises:
        CheckpointError: It has adapters.
    """
    if not (folder / PEFT_FILE).is_file():
        return
    has_model = any(any(folder.glob(names)) for names in ("model*.safetensors", "pytorch_model*"))
    otherwise = ", or remove the file to do without them" if has_model else ""
    raise CheckpointError(
        f"{folder} has adapters of peft ({PEFT_FILE}), which are read only after a merge: save "
        f"`PeftModel.from_pretrained(model, folder).merge_and_unload()`{otherwise}."
    )


def _named_by(index: Path) -> list[str]:
    content = read_json(index, remedy="Copy or download it again.")
    try:
        names = sorted(set(content["weight_map"].values()))
        if not names or not all(map(is_name, names)):  # each lies beside the index
            raise ValueError("it names no files of its folder")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{index} does not say which files hold the weights ({error!r}). Copy or download it "
            "again."
        ) from error
    return names


def parameters_in(path: str, *, counted: Callable[[str], bool] = lambda name: True) -> int:
    """Number of parameters in a policy folder, for all or some names; 0 without weights."""
    return sum(check_safetensors(file, counted=counted) for file in weight_files(find(path)))


def stored_policy(folder: Path) -> str | None:
    """Name of the policy class in a policy folder of siirl; None for any other folder."""
    try:
        description = read_json(folder / CONFIG_FILE, remedy="")
        name, _ = description["policy"], description["config"]
    except (CheckpointError, LookupError, OSError, TypeError):
        return None  # a language model, an OpenVLA, nothing readable
    return str(name)


def learnt_tasks(path: str) -> tuple[str, ...]:
    """Tasks that the weights in a policy folder learnt, by cloning or in a siirl run, according to
    its config.json.
    """
    try:
        tasks = read_json(find(path) / CONFIG_FILE, remedy="")["notes"]["tasks"]
    except (CheckpointError, LookupError, TypeError):
        return ()  # a language model, an OpenVLA, a user's own policy
    return tuple(map(str, tasks)) if isinstance(tasks, list) else ()
