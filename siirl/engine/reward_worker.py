"""Calls a user's reward function in a worker process of `envs.worker_pool`.

The pool starts its processes with `module:function`. Here the function's name encodes the whole
reference. The user's module is therefore imported when the process starts, within the start
deadline, and its errors are reported before the first sample. This module has only light imports;
it checks all results of the function.
"""

import importlib
import importlib.util
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from envs.base import LARGEST_REWARD, is_reward
from envs.mistakes import user_code
from siirl.user_numbers import as_float

PREFIX = "function_"
ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
BATCH_ARGUMENTS = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
FAILED = "failed"
PING = "ping"  # a request that only checks that the function loads


def target_of(*, name: str, path: str | None, batched: bool) -> str:
    """The target for `envs.worker_pool.WorkerSettings`."""
    reference = json.dumps(
        {
            "name": name,
            "path": None if path is None else os.path.abspath(os.path.expanduser(path)),
            "batched": batched,
        }
    )
    return f"{__name__}:{PREFIX}{reference.encode().hex()}"


def __getattr__(attribute: str) -> Callable[[Any], Any]:
    """The function that `target_of` named; it takes a list of samples."""
    if not attribute.startswith(PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
    reference = json.loads(bytes.fromhex(attribute.removeprefix(PREFIX)))
    function = _load(reference["name"], reference["path"])
    names = BATCH_ARGUMENTS if reference["batched"] else ARGUMENTS
    try:
        inspect.signature(function).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise ImportError(
            f"its signature does not accept the arguments ({', '.join(names)}): {error}"
        ) from error
    return _batch_caller(function) if reference["batched"] else _caller(function)


def _caller(function: Callable[..., Any]) -> Callable[[Any], Any]:
    async def call(samples: Any) -> Any:
        if samples == PING:
            return PING
        return [await _graded(function, sample) for sample in samples]

    return call


async def _graded(function: Callable[..., Any], sample: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return judged(await _result(function, sample))
    except _Raised as error:
        return {FAILED: str(error)}


def _batch_caller(function: Callable[..., Any]) -> Callable[[Any], Any]:
    async def call(samples: Any) -> Any:
        if samples == PING:
            return PING
        columns = {}
        for many, one in zip(BATCH_ARGUMENTS, ARGUMENTS, strict=True):
            columns[many] = [sample[one] for sample in samples]
        try:
            scores = await _result(function, columns)
        except _Raised as error:
            return [{FAILED: str(error)}] * len(samples)
        if isinstance(scores, str | bytes | Mapping) or not isinstance(scores, Sequence):
            raise TypeError(
                f"it returned {type(scores).__name__}, but {len(samples)} samples need a list of "
                f"{len(samples)} scores"
            )
        if len(scores) != len(samples):
            raise ValueError(f"it returned {len(scores)} scores for {len(samples)} samples")
        return [judged(score) for score in scores]

    return call


class _Raised(Exception):
    """What a function raised, with file and line."""


async def _result(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    with user_code(_Raised):
        result = function(**arguments)
        return await result if inspect.isawaitable(result) else result


def judged(result: Any) -> dict[str, Any]:
    """`checked(result)`, or {"failed": reason}.

    In a batch, an invalid score fails only its own sample.
    """
    try:
        return checked(result)
    except (TypeError, ValueError) as error:
        return {FAILED: str(error)}


def checked(result: Any) -> dict[str, float]:
    """`result` as {"score": float, further parts: float}.

    Further parts that are not finite numbers (for example the extracted answer) are left out: parts
    are only logged, and none of their values makes the score fail.

    Raises:
        TypeError: Not a number, or a dict without `score`.
        ValueError: NaN, infinity, or more than `LARGEST_REWARD` in size.
    """
    if isinstance(result, Mapping):
        if "score" not in result:
            raise TypeError(f"it returned a dict without 'score': {sorted(map(str, result))}")
        further = {
            str(name): number
            for name, part in result.items()
            if name != "score" and (number := as_float(part)) is not None and math.isfinite(number)
        }
        return {**further, "score": _score(result["score"])}
    return {"score": _score(result)}


def _score(value: Any) -> float:
    number = as_float(value)
    if number is None:
        raise TypeError(
            f"it returned {type(value).__name__}, but a score is a number or a dict with 'score'"
        )
    if not is_reward(number):
        raise ValueError(
            f"it returned {number}, but a score must be finite and at most {LARGEST_REWARD:g} in "
            "size"
        )
    return number


def _load(name: str, path: str | None) -> Callable[..., Any]:
    with user_code(lambda raised: ImportError(f"importing it raised {raised}")):
        module = (
            importlib.import_module(name.partition(":")[0]) if path is None else _module_of(path)
        )
    function: Any = module
    for part in name.rpartition(":")[2].split("."):
        if part not in dir(function):
            raise ImportError(f"{getattr(module, '__file__', module.__name__)} has no {part!r}")
        function = getattr(function, part)
    if not callable(function):
        raise ImportError(f"{name} is of type {type(function).__name__} and cannot be called")
    return function


def _module_of(path: str) -> ModuleType:
    """A file as a module; like a script, it can import its neighbours."""
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("user_reward_functions", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
