"""Weights in safetensors files: read into a module whose names and shapes they must fit.

Weights in several files with `model.safetensors.index.json`, as Hugging Face cuts large ones, are
read as well, and never written.
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

WEIGHTS_FILE, CONFIG_FILE = WHOLE_FILE, "config.json"


def load_weights(
    module: nn.Module,
    place: Path,
    *,
    left_out: Callable[[str], bool] = lambda name: False,
    further: Mapping[str, torch.Tensor] | None = None,
    weights: bool = True,
) -> None:
    """Read weights into `module`, one file after the other; see `require_fitting` for what they
    must be.

    Args:
        module: What gets them, in its own type; weights of the meta device are replaced.
        place: A safetensors file, or a folder with one or with several (see
            `siirl.params.weight_files.weight_files`); of a checkpoint with adapters the folder is
            read, and they are merged.
        left_out: Names in the files that the module has no use for.
        further: Weights from elsewhere.
        weights: False compares names and shapes, and reads no more than the files' headers.

    Raises:
        CheckpointError: A file that is not whole, or weights of another model.
    """
    further, lora = further or {}, stored_adapters(place)
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
    """Name to shape of the weights in a file or a folder, of one with adapters as they are merged;
    only the files' headers are read.
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
    """Raise CheckpointError unless every name and shape fits; it says which does not.

    A weight with two names (tied) may be there under one of them.
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
            f"{place} holds another model than {type(module).__name__}: {'; '.join(sorted(wrong)[:5])} ({len(wrong)} in all)."
        )


def _files(place: Path) -> list[Path]:
    return weight_files(place) if place.is_dir() else [place]


def _put(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy into the module's weights; those on the meta device have no memory to copy into and are
    replaced.
    """
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
    """What safetensors says of a file that is cut off becomes an error that names the file and what
    helps.
    """
    try:
        yield
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{file} ({file.stat().st_size} bytes) is not a whole safetensors file: {error}. Copy or make it again."
        ) from error
