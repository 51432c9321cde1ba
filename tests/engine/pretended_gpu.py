"""A GPU that is only pretended: which tensors a computation makes, and on which device.

Tensors of the pretended GPU are computed by the CPU, say `cuda:0`, and refuse what a GPU's refuse:
to meet a tensor of the CPU, and to become an array. So a computation that runs here has no tensor
on a wrong device. C++ sees them as tensors of the CPU: autograd and the choice of kernels are the
CPU's. Left out: autocast, streams, memory, NCCL, and offloading, which looks at storage.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
ATEN = torch.ops.aten
MOVES = (ATEN._to_copy.default, ATEN.copy_.default)
INDEXED = (
    ATEN.index.Tensor,
    ATEN.index_put.default,
    ATEN.index_put_.default,
    ATEN._index_put_impl_.default,
)
"""Their indices may be on the CPU where the tensor is on a GPU."""
OF_CUDA = {
    "_lazy_init": None,
    "synchronize": None,
    "empty_cache": None,
    "reset_peak_memory_stats": None,
    "max_memory_allocated": 0,
    "memory_allocated": 0,
    "get_device_name": "pretended",
}
"""What functions of torch.cuda return meanwhile."""


class WrongDeviceError(RuntimeError):
    """A GPU would refuse these tensors."""


class OnGpu(torch.Tensor):
    """A tensor of the pretended GPU; `values` are on the CPU."""

    values: torch.Tensor
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "OnGpu":
        with torch.inference_mode(False):  # else views of older tensors could not be made
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                values.size(),
                strides=values.stride(),
                storage_offset=values.storage_offset(),
                dtype=values.dtype,
                device="cpu",
            )
        made.values = values
        return made

    def __init__(self, values: torch.Tensor) -> None:
        """`__new__` does all."""

    def __repr__(self, **options: Any) -> str:
        return f"OnGpu({self.values!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.numpy, torch.Tensor.__array__):
            raise WrongDeviceError("a tensor of a GPU cannot become an array")
        if func is torch.Tensor.to:
            return moved(*args, **kwargs)
        if func is torch.Tensor.cpu:
            return moved(args[0], "cpu")
        if func is torch.Tensor.tolist:
            return moved(args[0], "cpu").tolist()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def moved(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.to`, of which C++ would not know the devices."""
    place = _asked_of_to(tensor, *args, **kwargs)
    if place is None:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return ATEN._to_copy(tensor, **place)


def _asked_of_to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
    """Device and type that `Tensor.to` is asked for; None if the tensor has them."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for argument in (*args, kwargs.get("other")):
        if isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, str | torch.device):
            device = argument
        elif isinstance(argument, torch.Tensor):
            device, dtype = argument.device, argument.dtype
    device = tensor.device if device is None else torch.device(device)
    dtype = dtype or tensor.dtype
    there = (device.type, dtype) == (tensor.device.type, tensor.dtype)
    return None if there and not kwargs.get("copy") else {"device": device, "dtype": dtype}


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation, on the device where PyTorch would have it."""
    if func.overloadpacket is ATEN.to:  # inference mode does not take it apart
        place = _asked_of_to(*args, **kwargs)
        if place is None:
            return args[0]
        func, args, kwargs = ATEN._to_copy.default, args[:1], place
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    on_gpu = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    if on_gpu and func not in MOVES:
        _require_one_device(func, args, tensors)
    asked = kwargs.get("device")
    if asked is not None and torch.device(asked).type == "cuda":
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if "pin_memory" in kwargs:
        kwargs = {**kwargs, "pin_memory": False}
    result = func(*tree_map(_values, args), **tree_map(_values, kwargs))
    if not _is_on_gpu(func, args, asked, bool(on_gpu)):
        return result
    same = {id(tensor.values): tensor for tensor in on_gpu}  # results of operations in place

    def wrapped(part: Any) -> Any:
        if not isinstance(part, torch.Tensor):
            return part
        return same[id(part)] if id(part) in same else OnGpu(part)

    return tree_map(wrapped, result)


def _values(part: Any) -> Any:
    return part.values if isinstance(part, OnGpu) else part


def _require_one_device(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    compared = tensors
    if func in INDEXED:
        compared = [args[0], *(each for each in args[2:3] if isinstance(each, torch.Tensor))]
        if not isinstance(args[0], OnGpu):
            raise WrongDeviceError(f"{func}: a tensor of the CPU has indices on the GPU")
    apart = [each for each in compared if each.ndim and not isinstance(each, OnGpu)]
    if apart and any(isinstance(each, OnGpu) for each in compared):
        places = [f"{each.device} {list(each.shape)}" for each in tensors]
        raise WrongDeviceError(f"{func}: {', '.join(places)}")


def _is_on_gpu(func: Any, args: Any, asked: Any, any_on_gpu: bool) -> bool:
    """Whether the result is, with `asked` as the argument `device`."""
    if func is ATEN.copy_.default:
        return isinstance(args[0], OnGpu)
    if func is ATEN.new_empty_strided.default:
        # C++ copies a gradient, on what it thinks its device
        return any_on_gpu
    if asked is not None and torch.device(asked).type == "cpu":
        # likewise zeros for a gradient; nothing else makes tensors of the CPU in a backward pass
        return torch._C._current_autograd_node() is not None
    return any_on_gpu if asked is None else torch.device(asked).type == "cuda"


class _Pretending(TorchDispatchMode):
    """Also sees operations without a tensor of the GPU, such as `torch.zeros(3, device=GPU)`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


@contextmanager
def pretended_gpu() -> Iterator[torch.device]:
    """Yields the device; everything that is computed in the block must belong to it in the end."""
    with ExitStack() as stack:
        for name, returned in OF_CUDA.items():
            stack.enter_context(patch.object(torch.cuda, name, lambda *_, found=returned: found))
        # `module.to` replaces parameters, whose type changes, and `torch.tensor` moves what it made
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        stack.callback(torch._C._set_only_lift_cpu_tensors, False)
        stack.enter_context(_Pretending())
        yield GPU
