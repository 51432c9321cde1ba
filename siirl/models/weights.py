"""Reads weights from safetensors files into a module; names and shapes must match.

Large modules are built on the meta device, where weights have shapes but no memory. Their files are
checked at once (`plan_weights`) but read only after sharding, each rank its part (`materialise`).
No rank therefore holds a whole model.

Weights may lie in several files with `model.safetensors.index.json`, Hugging Face's form of large
models.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from siirl.errors import CheckpointError, InvariantError
from siirl.files.weight_files import weight_files
from siirl.models.adapters import (
    BASE_WEIGHT,
    MATRICES,
    name_without_adapters,
    stored_adapters,
)
from siirl.models.checksum import checksum
from siirl.models.stored_tensors import StoredTensors, local_part
from siirl.params.model_args import LoraArguments


class UnscaledWeightsError(CheckpointError):
    """Quantised numbers where a module has weights: without their scales they mean nothing."""


@dataclass
class PlannedWeights:
    """Weights of a module that fit it but were not read yet."""

    stored: StoredTensors
    names: Mapping[str, str]
    """Maps names in the module to names in the files; a tied weight has all its names."""
    further: Mapping[str, torch.Tensor]
    """Weights from elsewhere, by name in the module."""
    lora: LoraArguments | None
    """Adapters in the files that are merged into the weights."""

    @property
    def fingerprint(self) -> str:
        """Digest of names, shapes and the first bytes of every tensor, equal for equal files."""
        digest = hashlib.sha256()
        for name in sorted(self.stored.tensors):
            tensor = self.stored.tensors[name]
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.first_bytes())
        for name in sorted(self.further):
            digest.update(f"{name} {checksum({name: self.further[name]})}".encode())
        return digest.hexdigest()

    def fill(self, module: nn.Module) -> set[str]:
        """Read the weights of `module`, or this rank's parts of them, in the module's dtypes.

        Weights that the files lack (new adapters) are unchanged. Returns the names of the others.
        """
        filled: set[str] = set()
        seen: set[int] = set()  # a tied weight is read once
        with torch.no_grad():
            for name, tensor in _weights_and_buffers(module):
                plain = name.replace(".base_layer.", ".")  # adapters may have been added since
                own = name if name in self.names else plain
                if plain not in self.further and own not in self.names:
                    continue
                filled.add(name)
                if id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                if plain in self.further:
                    _copy_part(self.further[plain], tensor)
                else:
                    self._fill(self.names[own], tensor)
        return filled

    def _fill(self, name: str, target: torch.Tensor) -> None:
        layer = name.removesuffix(BASE_WEIGHT)
        if self.lora is None or layer == name:
            self.stored.fill(name, target)
        else:
            self._fill_merged(layer, target, scale=self.lora.alpha / self.lora.rank)

    def _fill_merged(self, layer: str, target: torch.Tensor, *, scale: float) -> None:
        """Fill the rows that this rank holds with `W + B A scale`, computed in float32."""
        weight = torch.empty_like(target, dtype=torch.float32)
        self.stored.fill(f"{layer}{BASE_WEIGHT}", weight)
        down, up = (self.stored.whole(f"{layer}{matrix}").float() for matrix in MATRICES)
        rows, first = self.stored.rows_of(target)
        change = (up[first : first + rows] @ down) * scale
        part = local_part(weight)
        local_part(target).copy_(part + change.to(part.device))


def plan_weights(
    module: nn.Module,
    place: Path,
    *,
    left_out: Callable[[str], bool] = lambda name: False,
    renamed: Callable[[str], str] = lambda name: name,
    further: Mapping[str, torch.Tensor] | None = None,
    merges: bool = True,
) -> PlannedWeights:
    """Compare the headers of weight files with `module`; see `require_fitting`.

    Args:
        module: Module with all its weights, possibly on the meta device.
        place: A safetensors file, or a folder with one or several (see
            `siirl.files.weight_files.weight_files`).
        left_out: Names in the files that the module does not need.
        renamed: Maps a name in the files to the module's.
        further: Weights from elsewhere.
        merges: Whether adapters in a folder are merged; False for a module that has them.

    Raises:
        CheckpointError: A truncated file, or weights of another model.
        UnscaledWeightsError: Quantised weights.
    """
    further = further or {}
    lora = stored_adapters(place) if merges else None
    stored = StoredTensors(_files(place))
    plain = {
        name: name_without_adapters(name) if lora is not None else name for name in stored.tensors
    }
    names = {
        renamed(own): name for name, own in plain.items() if own is not None and not left_out(own)
    }
    shapes = {own: stored.tensors[name].shape for own, name in names.items()}
    require_fitting(
        module,
        shapes | {name: tuple(tensor.shape) for name, tensor in further.items()},
        place=place,
    )
    _require_floating_point(module, stored, names, place=place)
    _require_equal_ties(module, stored, names, place=place)
    return PlannedWeights(stored, _under_all_names(module, names), further, lora)


def load_weights(
    module: nn.Module,
    place: Path,
    *,
    left_out: Callable[[str], bool] = lambda name: False,
    further: Mapping[str, torch.Tensor] | None = None,
    merges: bool = True,
) -> None:
    """Read weights into `module`, in its own dtypes; see `plan_weights`.

    Weights on the meta device get memory on the CPU.
    """
    planned = plan_weights(module, place, left_out=left_out, further=further, merges=merges)
    give_memory(module, torch.device("cpu"))
    planned.fill(module)


def materialise(module: nn.Module, device: torch.device) -> None:
    """Give memory to weights on the meta device and read them as planned.

    Args:
        module: Whole or sharded; its parts may have planned weights (`planned_weights`).
        device: Device of the weights; must be the mesh's device for sharded ones.

    Raises:
        InvariantError: A weight on the meta device for which no file was planned.
    """
    unread = {
        name for name, weight in module.named_parameters(remove_duplicate=False) if weight.is_meta
    }
    give_memory(module, device)
    for place, part in module.named_modules():
        planned = planned_weights(part)
        if planned is not None:
            unread -= {f"{place}.{name}" if place else name for name in planned.fill(part)}
            part.planned = None
    if unread:
        raise InvariantError(
            f"{len(unread)} weights of {type(module).__name__} are in no planned file, the first "
            f"is {min(unread)!r}: they would be uninitialised."
        )


def planned_weights(part: nn.Module) -> PlannedWeights | None:
    """The weights of a module that are still to be read, its attribute `planned`; None without."""
    planned: PlannedWeights | None = getattr(part, "planned", None)
    return planned


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Modules built in this context have their weights on the meta device; buffers have values."""
    hook = register_module_parameter_registration_hook(_on_meta)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()


def _on_meta(module: nn.Module, name: str, weight: nn.Parameter) -> nn.Parameter:
    return weight if weight.is_meta else nn.Parameter(weight.to("meta"), weight.requires_grad)


def give_memory(module: nn.Module, device: torch.device) -> None:
    """Replace weights on the meta device by uninitialised ones; tied weights stay tied."""
    replaced: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, weight in list(part.named_parameters(recurse=False)):
            if weight.is_meta:
                if id(weight) not in replaced:
                    replaced[id(weight)] = nn.Parameter(
                        torch.empty_like(weight, device=device), weight.requires_grad
                    )
                part._parameters[name] = replaced[id(weight)]
    if replaced and isinstance(module, FSDPModule):
        module._apply(lambda tensor: tensor)  # FSDP2 looks for them again


def move_to(module: nn.Module, device: torch.device) -> None:
    """Move all weights and buffers that have memory.

    Weights on the meta device stay the same objects, so that tied ones stay tied, even if torch
    replaces parameters (`torch.__future__.set_overwrite_module_params_on_conversion`).
    """
    without_memory = [
        (part, name, weight)
        for part in module.modules()
        for name, weight in part._parameters.items()
        if weight is not None and weight.is_meta
    ]
    module._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))
    for part, name, weight in without_memory:
        part._parameters[name] = weight


def stored_shapes(place: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape of the weights in a file or folder, with adapters merged.

    Only the headers of the files are read.
    """
    shapes = StoredTensors(_files(place)).shapes()
    if stored_adapters(place) is None:
        return shapes
    plain = {name_without_adapters(name): shape for name, shape in shapes.items()}
    return {name: shape for name, shape in plain.items() if name is not None}


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


def _require_floating_point(
    module: nn.Module, stored: StoredTensors, names: Mapping[str, str], *, place: Path
) -> None:
    """Raise UnscaledWeightsError for a floating-point weight that is stored in 8 bits or as an
    integer.
    """
    for own, weight in module.state_dict().items():
        dtype = stored.tensors[names[own]].dtype if own in names else weight.dtype
        if weight.is_floating_point() and not (dtype.is_floating_point and dtype.itemsize > 1):
            raise UnscaledWeightsError(
                f"{place} holds {own} as {dtype}: it is quantised, and its scales would be lost. "
                "Give the model with weights in bfloat16, float16 or float32."
            )


def _require_equal_ties(
    module: nn.Module, stored: StoredTensors, names: Mapping[str, str], *, place: Path
) -> None:
    """Raise CheckpointError for a tied weight with different values under two names."""
    first: dict[int, str] = {}
    for own, weight in module.state_dict(keep_vars=True).items():
        if own not in names:
            continue
        other = first.setdefault(id(weight), own)
        if other != own and not stored.equal(names[other], names[own]):
            raise CheckpointError(
                f"{place} holds another model than {type(module).__name__}, in which {other} and "
                f"{own} are one weight: they differ there."
            )


def _under_all_names(module: nn.Module, names: Mapping[str, str]) -> dict[str, str]:
    """`names` with every name of a tied weight, so that it is read also where one was removed."""
    weights = module.state_dict(keep_vars=True)
    stored = {id(weights[own]): name for own, name in names.items()}
    missing = {own: stored[id(weight)] for own, weight in weights.items() if id(weight) in stored}
    return missing | dict(names)


def _files(place: Path) -> list[Path]:
    return weight_files(place) if place.is_dir() else [place]


def _weights_and_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """All names; a tied weight appears under each of its names."""
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def _copy_part(whole: torch.Tensor, target: torch.Tensor) -> None:
    part = local_part(target)
    if isinstance(target, DTensor):
        rows, first = StoredTensors.rows_of(target)
        whole = whole[first : first + rows]
    part.copy_(whole)
