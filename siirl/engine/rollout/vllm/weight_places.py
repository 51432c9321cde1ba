"""Writes rows of new weights straight into the parameters of vLLM's model.

vLLM's loaders take whole tensors and know their places in the parameters. Each loader is called
once with a tensor on the meta device, and the copies that it would make are recorded. Rows are then
copied to these places as they arrive, so that no tensor exists twice.

On a CPU vLLM packs the matrix of a linear layer and drops the original. Such a layer is unpacked
when its first row arrives and packed again after its last, so at most one layer exists twice.

If vLLM changes weights in another way after loading (quantised models, experts, latent attention),
it reloads the model itself, from whole tensors.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from siirl.models.weight_rows import Assembly, Rows

UNCHANGED = (None, "UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
"""vLLM's layer methods that keep weights as loaded, except for packing on a CPU."""


class WeightPlaces(Protocol):
    """Destination of new weights."""

    def begin(self) -> None:
        """Prepare for all weights of the model."""

    def take(self, rows: Rows) -> None:
        """Copy some of them; nothing refers to `rows` afterwards."""

    def finish(self) -> None:
        """Let the new weights act."""


def weight_places(model: Any, model_config: Any) -> WeightPlaces:
    """The destination of new weights for vLLM's `model`."""
    changed = any(
        _method(part) not in UNCHANGED or hasattr(part, "kv_b_proj") for part in model.modules()
    )
    return ByLayers(model, model_config) if changed else InPlace(model)


def _method(part: nn.Module) -> str | None:
    method = getattr(part, "quant_method", None)
    return None if method is None else type(method).__name__


class ByLayers:
    """vLLM's own reload: a layer is held until it is whole, then changed and copied."""

    def __init__(self, model: Any, model_config: Any) -> None:
        self.model, self.model_config = model, model_config
        self.assembly = Assembly()

    def begin(self) -> None:
        """See `WeightPlaces`."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self.assembly = Assembly()
        initialize_layerwise_reload(self.model)

    def take(self, rows: Rows) -> None:
        """See `WeightPlaces`."""
        whole = self.assembly.add(rows)
        if whole is not None:
            self.model.load_weights([(rows.name, whole)])

    def finish(self) -> None:
        """See `WeightPlaces`."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)


@dataclass(frozen=True)
class Place:
    """A part of a weight, and the part of a parameter that holds it."""

    target: torch.Tensor
    begin: tuple[int, ...]
    """First entry of the part on each axis of the weight."""

    def write(self, rows: Rows) -> int:
        """Copy the part of `rows` that belongs here; returns the number of entries."""
        low = max(rows.first, self.begin[0])
        high = min(rows.first + len(rows.values), self.begin[0] + len(self.target))
        if low >= high:
            return 0
        values = rows.values[low - rows.first : high - rows.first]
        for axis in range(1, values.ndim):
            values = values.narrow(axis, self.begin[axis], self.target.shape[axis])
        self.target[low - self.begin[0] : high - self.begin[0]].copy_(values)
        return values.numel()


class InPlace:
    """Rows go into the parameters as they arrive."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.lasting: dict[str, list[Place]] = {}
        """Places in parameters that are never packed; they are kept between syncs."""

    def begin(self) -> None:
        """See `WeightPlaces`."""
        self.packed = PackedLayers(self.model)
        self.assembly = Assembly()
        self.places: dict[str, list[Place] | None] = dict(self.lasting)

    def take(self, rows: Rows) -> None:
        """See `WeightPlaces`."""
        if rows.name not in self.places:
            self.places[rows.name] = self._places(rows)
        places = self.places[rows.name]
        if places is None:
            whole = self.assembly.add(rows)
            if whole is not None:
                self.model.load_weights([(rows.name, whole)])
            return
        if rows.last:
            del self.places[rows.name]  # it would keep an unpacked layer alive
        for place in places:
            self.packed.written(place.target, place.write(rows))

    def finish(self) -> None:
        """See `WeightPlaces`."""
        self.packed.finish()

    def _places(self, rows: Rows) -> list[Place] | None:
        """Places of a weight; None if its loader does more than copy parts of it."""
        weight = torch.empty(rows.shape, dtype=rows.values.dtype, device="meta")
        with _CopyRecorder() as copies:
            self.model.load_weights([(rows.name, weight)])
        places: list[Place] = []
        lasting = True
        for target, part in copies.found:
            lasting = lasting and not self.packed.holds(target)
            begin = _begin(part, weight)
            opened = self.packed.opened(target)
            if begin is None or part.shape != target.shape:
                return None
            places.append(Place(opened, begin))
        if lasting:
            self.lasting[rows.name] = places
        return places


class _CopyRecorder(TorchDispatchMode):
    """Records targets and sources of copies instead of copying."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.found.append((args[0], args[1]))
            return args[0]
        return func(*args, **(kwargs or {}))


def _begin(part: torch.Tensor, whole: torch.Tensor) -> tuple[int, ...] | None:
    """First entry on each axis of a part of `whole` made by `narrow`; None for any other part."""
    if _memory(part) != _memory(whole) or whole.ndim == 0 or part.stride() != whole.stride():
        return None
    begin, offset = [], part.storage_offset()
    for stride in whole.stride():
        begin.append(offset // stride)
        offset %= stride
    return tuple(begin)


def _memory(tensor: torch.Tensor) -> int:
    """Identifies the storage of a tensor, also on the meta device."""
    return tensor.untyped_storage()._cdata


class PackedLayers:
    """Layers whose matrix vLLM has packed for the CPU; on a GPU there are none.

    vLLM 0.32 drops the matrix of a linear layer, and keeps that of an embedding, which a head can
    share, beside a packed copy.
    """

    def __init__(self, model: Any) -> None:
        self._layers: dict[int, Any] = {}
        """Layers by the memory of their matrix, on the meta device or unpacked."""
        self._missing: dict[int, int] = {}
        """Entries that an unpacked matrix still lacks, by its memory."""
        self._beside = []
        """Layers with a packed copy beside their matrix."""
        for layer in model.modules():
            if not hasattr(layer, "cpu_linear"):
                continue
            if layer.weight.numel():
                self._beside.append(layer)
                continue
            layer.weight = _shape_before_packing(layer)
            self._layers[_memory(layer.weight)] = layer

    def holds(self, target: torch.Tensor) -> bool:
        """Whether a part of a parameter belongs to a packed layer."""
        return _memory(target) in self._layers

    def opened(self, target: torch.Tensor) -> torch.Tensor:
        """The part of a parameter, with memory; unpacks its layer if necessary."""
        if not target.is_meta:
            return target
        from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor

        layer = self._layers.pop(_memory(target))
        del layer.cpu_linear  # the packed matrix
        layer.weight = materialize_meta_tensor(layer.weight)
        self._layers[_memory(layer.weight)] = layer
        self._missing[_memory(layer.weight)] = layer.weight.numel()
        return layer.weight.data.as_strided(target.shape, target.stride(), target.storage_offset())

    def written(self, target: torch.Tensor, entries: int) -> None:
        """Count the entries written to a part of a parameter; pack its layer after the last
        entry.
        """
        memory = _memory(target)
        if memory in self._missing:
            self._missing[memory] -= entries
            if self._missing[memory] == 0:
                del self._missing[memory]
                _pack(self._layers.pop(memory))

    def finish(self) -> None:
        """Pack the remaining layers."""
        for memory in self._missing:
            _pack(self._layers[memory])
        for layer in self._beside:
            del layer.cpu_linear
            _pack(layer)


def _shape_before_packing(layer: Any) -> torch.Tensor:
    """The matrix of a packed layer on the meta device, with vLLM's loader."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
    from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

    parameters, _ = get_layerwise_info(layer).restore_metadata
    weight: torch.Tensor = restore_layer_refs(parameters["weight"], layer)
    return weight


def _pack(layer: Any) -> None:
    layer.quant_method.process_weights_after_loading(layer)
