"""Reads weights from safetensors files into a module whose names and shapes they must fit.

Weights in several files with `model.safetensors.index.json`, as Hugging Face splits large ones, are
read, but never written.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

from siirl.errors import CheckpointError
from siirl.models.adapters import merged, name_without_adapters, stored_adapters
from siirl.params.weight_files import WHOLE_FILE, weight_files

WEIGHTS_FILE = WHOLE_FILE
CONFIG_FILE = "config.json"


def load_weights(
    module: nn.Module,
    place: Path,
    *,
    left_out: Callable[[str], bool] = lambda name: False,
    further: Mapping[str, torch.Tensor] | None = None,
    weights: bool = True,
) -> None:
    """Read weights into `module`, one file at a time; see `require_fitting`.

    Args:
        module: Gets the weights, in its own type; weights on the meta device are replaced.
        place: A safetensors file, or a folder with one or several (see
            `siirl.params.weight_files.weight_files`); adapters in a folder are merged.
        left_out: Names in the files that the module does not need.
        further: Weights from elsewhere.
        weights: False compares names and shapes, and reads only the headers of the files.

    Raises:
        CheckpointError: A truncated file, or weights of another model.
    """
    further = further or {}
    lora = stored_adapters(place)
    shapes = {name: shape for name, shape in stored_shapes(place).items() if not left_out(name)}
    require_fitting(
        module,
        shapes | {name: tuple(tensor.shape) for name, tensor in further.items()},
        place=place,
    )
    if not weights:
        return
    _put(module, further)
    for file in _files(place):
        with _whole(file):
            tensors = load_file(file) if lora is None else merged(load_file(file), lora)
        _put(module, {name: tensor for name, tensor in tensors.items() if name in shapes})


def stored_shapes(place: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape of the weights in a file or folder, with adapters merged.

    Only the headers of the files are read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    adapted = stored_adapters(place) is not None
    for file in _files(place):
        with _whole(file), safetensors.safe_open(file, framework="pt") as stored:
            names = {
                name: name_without_adapters(name) if adapted else name for name in stored.keys()
            }
            shapes |= {
                plain: tuple(stored.get_slice(name).get_shape())
                for name, plain in names.items()
                if plain is not None
            }
    return shapes


def require_fitting(
    module: nn.Module, shapes: Mapping[str, tuple[int, ...]], *, place: Path
) -> None:
    """Raise CheckpointError unless every name and shape fits; the message lists differences.

    A tied weight may be stored under one of its names.
    """
    expected = module.state_dict(keep_vars=True)
    there = {id(weight) for name, weight in expected.items() if name in shapes}
    wrong = [f"missing {name}" for name, weight in expected.items() if id(weight) not in there]
    wrong += [f"unexpected {name}" for name in shapes.keys() - expected.keys()]
    wrong += [
        f"{name} is {shapes[name]}, expected {tuple(expected[name].shape)}"
        for name in expected.keys() & shapes.keys()
        if shapes[name] != tuple(expected[name].shape)
    ]
    if wrong:
        raise CheckpointError(
            f"{place} holds another model than {type(module).__name__}: "
            f"{'; '.join(sorted(wrong)[:5])} ({len(wrong)} in all)."
        )


def _files(place: Path) -> list[Path]:
    return weight_files(place) if place.is_dir() else [place]


def _put(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into the module's weights; weights on the meta device are replaced."""
    weights = module.state_dict(keep_vars=True)
    of_meta = {
        name: tensor.to(weights[name].dtype)
        for name, tensor in tensors.items()
        if weights[name].is_meta
    }
    module.load_state_dict(of_meta, strict=False, assign=True)
    module.load_state_dict(
        {name: tensor for name, tensor in tensors.items() if name not in of_meta}, strict=False
    )


@contextlib.contextmanager
def _whole(file: Path) -> Iterator[None]:
    """Turn the safetensors error of a truncated file into one with file name and remedy."""
    try:
        yield
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{file} ({file.stat().st_size} bytes) is not a whole safetensors file: {error}. Copy "
            "or make it again."
        ) from error
