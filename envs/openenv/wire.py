"""JSON forms of observations, actions, spaces and specs, on both sides of an OpenEnv connection.

An array is `{"dtype": "float32", "shape": [2, 3], "base64": …}` with the bytes in C order,
little-endian, so values arrive unchanged. Images are such arrays of uint8, because base64 takes a
third more bytes than the pixels but less time than PNG. Everything else is plain JSON. The space
determines how a value is read, so a sender's declarations allocate nothing.

Left out: spaces without a fixed form (`Graph`, `Sequence`, `OneOf`), and infos that JSON cannot
represent, which stay on the server.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.base import EnvSpec
from envs.surrogates import without_surrogates
from envs.text import Messages, ModelText, shortened

SPEC = "x-siirl-spec"  # key of the action schema of `siirl serve`
ARRAY_KEYS = ("dtype", "shape", "base64")
MAX_DEPTH = 16  # levels of spaces and infos
MAX_ELEMENTS = 1 << 28  # per Box: its bounds are arrays
PLAIN_FIELDS = (
    *("name", "max_episode_steps", "reports_success", "replayable", "instruction_changes"),
    *("leaves_ungraded", "notice"),
)
"""Fields of a spec that JSON holds as they are."""


def to_json(value: Any) -> Any:
    """The JSON form of an observation or an action.

    Raises:
        ValueError: A value of another kind.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        plain = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        return {
            "dtype": value.dtype.name,
            "shape": list(value.shape),
            "base64": base64.b64encode(plain.tobytes()).decode(),
        }
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(name): to_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(f"JSON has no form for {type(value).__name__} {shortened(value)}.")


def info_to_json(info: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `info` that JSON can represent; NaN becomes null."""
    kept = {}
    for name, value in info.items():
        try:
            kept[str(name)] = _without_nan(to_json(value), depth=0)
        except ValueError:
            continue  # see the module's "Left out"
    return kept


def from_json(value: Any, space: spaces.Space[Any], *, where: str) -> Any:
    """The member of `space` whose JSON form is `value`; arrays may also be nested lists.

    Raises:
        ValueError: Another form; the message names the place and what was expected.
    """
    match space:
        case spaces.Dict():
            return _dict_from_json(value, space, where=where)
        case spaces.Tuple():
            if not isinstance(value, list) or len(value) != len(space.spaces):
                raise _wrong(value, f"a list of {len(space.spaces)}", where=where)
            return tuple(
                from_json(entry, part, where=f"{where}[{index}]")
                for index, (entry, part) in enumerate(zip(value, space.spaces, strict=True))
            )
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return _array(value, space, where=where)
        case spaces.Discrete():
            if type(value) is not int or not space.contains(value):
                last = int(space.start + space.n - 1)
                raise _wrong(value, f"a whole number from {space.start} to {last}", where=where)
            return value
        case spaces.Text():
            if not isinstance(value, str):
                raise _wrong(value, "text", where=where)
            return without_surrogates(value)
        case Messages():
            if not space.contains(value):
                raise _wrong(value, "a list of messages {role, content}", where=where)
            return [
                {"role": entry["role"], "content": without_surrogates(entry["content"])}
                for entry in value
            ]
    raise ValueError(f"{where}: {space} has no JSON form.")


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """The JSON form of a space.

    Raises:
        ValueError: A space without one.
    """
    match space:
        case spaces.Dict():
            return {
                "kind": "dict",
                "spaces": {name: space_to_json(part) for name, part in space.spaces.items()},
            }
        case spaces.Tuple():
            return {"kind": "tuple", "spaces": [space_to_json(part) for part in space.spaces]}
        case spaces.Box():
            return {
                "kind": "box",
                "dtype": space.dtype.name,
                "shape": list(space.shape),
                "low": _bound_to_json(space.low),
                "high": _bound_to_json(space.high),
            }
        case spaces.Discrete():
            return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {"kind": "multi_discrete", "nvec": np.asarray(space.nvec).tolist()}
        case spaces.MultiBinary():
            return {"kind": "multi_binary", "shape": list(space.shape)}
        case ModelText():
            return {"kind": "model_text", "max_length": space.max_length}
        case spaces.Text():
            return {
                "kind": "text",
                "max_length": space.max_length,
                "min_length": space.min_length,
                "charset": "".join(sorted(space.character_set)),
            }
        case Messages():
            return {"kind": "messages"}
    raise ValueError(f"{space} has no JSON form.")


def space_from_json(value: Any, *, depth: int = 0) -> spaces.Space[Any]:
    """The space whose JSON form is `value`.

    Raises:
        ValueError: Another form, or one of a later version.
    """
    kind = value.get("kind") if isinstance(value, dict) else None
    if depth > MAX_DEPTH:
        raise ValueError(f"a space nests deeper than {MAX_DEPTH} levels")
    try:
        match kind:
            case "dict":
                return spaces.Dict(
                    {
                        name: space_from_json(part, depth=depth + 1)
                        for name, part in value["spaces"].items()
                    }
                )
            case "tuple":
                return spaces.Tuple(
                    [space_from_json(part, depth=depth + 1) for part in value["spaces"]]
                )
            case "box":
                return _box(value)
            case "discrete":
                return spaces.Discrete(int(value["n"]), start=int(value["start"]))
            case "multi_discrete":
                return spaces.MultiDiscrete(value["nvec"])
            case "multi_binary":
                return spaces.MultiBinary([int(size) for size in value["shape"]])
            case "model_text":
                return ModelText(int(value["max_length"]))
            case "text":
                return spaces.Text(
                    int(value["max_length"]),
                    min_length=int(value["min_length"]),
                    charset=value["charset"],
                )
            case "messages":
                return Messages()
    except (KeyError, TypeError, AttributeError, AssertionError, OverflowError) as error:
        raise ValueError(f"{shortened(value)} is not a space of kind {kind!r} ({error})") from error
    raise ValueError(f"{shortened(value)} is not a space that this version of siirl knows")


def spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    """The JSON form of a spec; frames and rows stay on the server.

    Raises:
        ValueError: A space without a JSON form, or several agents, which OpenEnv does not support.
    """
    if spec.num_agents != 1:
        raise ValueError(
            f"{spec.name!r} has {spec.num_agents} agents, but a step of OpenEnv has one reward: "
            "set env.kwargs.num_agents=1."
        )
    return {
        **{name: _plain(getattr(spec, name)) for name in PLAIN_FIELDS},
        "tasks": list(spec.tasks),
        "decisions": list(map(int, spec.decisions)),
        "observation_space": space_to_json(spec.observation_space),
        "action_space": space_to_json(spec.action_space),
    }


def _plain(value: Any) -> Any:
    """A number of numpy as Python's, which JSON holds."""
    return value.item() if isinstance(value, np.generic) else value


def spec_from_json(value: Any) -> EnvSpec:
    """The spec whose JSON form is `value`; it renders no frames.

    Raises:
        ValueError: Another form.
    """
    try:
        return EnvSpec(
            **{name: value[name] for name in PLAIN_FIELDS},
            tasks=_tuple(value, "tasks"),
            decisions=_tuple(value, "decisions"),
            observation_space=space_from_json(value["observation_space"]),
            action_space=space_from_json(value["action_space"]),
            renders=False,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{shortened(value)} is not a spec of this version of siirl") from error


def _tuple(values: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    if not isinstance(values[name], list):
        raise ValueError(f"{name} are {shortened(values[name])} instead of a list")
    return tuple(values[name])


def _dict_from_json(value: Any, space: spaces.Dict, *, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != space.spaces.keys():
        raise _wrong(value, f"an object with {', '.join(space.spaces)}", where=where)
    return {
        name: from_json(value[name], part, where=f"{where}[{name!r}]")
        for name, part in space.spaces.items()
    }


def _array(value: Any, space: spaces.Space[Any], *, where: str) -> NDArray[Any]:
    dtype = np.dtype(space.dtype)
    shape = space.shape
    assert shape is not None  # Box, MultiDiscrete and MultiBinary have one
    expected = f"{dtype} {shape}"
    if isinstance(value, dict):
        if not all(key in value for key in ARRAY_KEYS):
            raise _wrong(
                value, f"{expected} in lists or in {{{', '.join(ARRAY_KEYS)}}}", where=where
            )
        found = (value["dtype"], value["shape"], value["base64"])
        if found[0] != dtype.name or found[1] != list(shape) or not isinstance(found[2], str):
            raise _wrong(f"{found[0]} {found[1]}", expected, where=where)
        try:
            data = base64.b64decode(found[2], validate=True)
        except (binascii.Error, ValueError) as error:
            raise _wrong(found[2], "base64", where=where) from error
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise _wrong(f"{len(data)} bytes", expected, where=where)
        return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape).astype(dtype)
    return _array_of_lists(value, dtype=dtype, shape=shape, where=where)


def _array_of_lists(
    value: Any, *, dtype: np.dtype[Any], shape: tuple[int, ...], where: str
) -> NDArray[Any]:
    expected = f"{dtype} {shape}"
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of several lengths
        raise _wrong(value, expected, where=where) from error
    kinds = "fiu" if dtype.kind == "f" else "iu"
    if array.shape != shape or array.dtype.kind not in kinds or _has_booleans(value):
        raise _wrong(value, expected, where=where)
    if dtype.kind != "f" and array.size:
        bounds = np.iinfo(dtype)
        if array.min() < bounds.min or array.max() > bounds.max:
            raise _wrong(value, expected, where=where)
    with np.errstate(over="ignore"):  # overflow becomes infinite, and the environment refuses it
        return array.astype(dtype)


def _has_booleans(value: Any) -> bool:
    """Whether nested lists have a boolean, which numpy reads as a number beside others."""
    if isinstance(value, list):
        return any(map(_has_booleans, value))
    return isinstance(value, bool)


def _bound_to_json(bound: NDArray[Any]) -> Any:
    """One number if all are equal; infinite ones are text, because JSON has no such number."""
    if bound.size and (bound == bound.flat[0]).all():
        return _number_to_json(bound.flat[0].item())
    return [_number_to_json(number) for number in bound.ravel().tolist()]


def _number_to_json(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def _box(value: Mapping[str, Any]) -> spaces.Box:
    dtype = np.dtype(value["dtype"])
    shape = tuple(int(size) for size in value["shape"])
    if dtype.kind not in "fiub":
        raise ValueError(f"a box of {dtype}")
    if min(shape, default=1) < 0 or math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"a box of shape {shape}")
    bounds = []
    for name in ("low", "high"):
        bound = value[name]
        numbers = [float(number) if isinstance(number, str) else number for number in _list(bound)]
        array = np.array(numbers, dtype)
        bounds.append(
            array.reshape(shape) if isinstance(bound, list) else np.full(shape, array[0], dtype)
        )
    return spaces.Box(bounds[0], bounds[1], shape, dtype.type)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _without_nan(value: Any, *, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"an info nests deeper than {MAX_DEPTH} levels")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _without_nan(entry, depth=depth + 1) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry, depth=depth + 1) for entry in value]
    return value


def _wrong(value: Any, expected: str, *, where: str) -> ValueError:
    found = value if isinstance(value, str) and len(value) < 60 else shortened_json(value)
    return ValueError(f"{where} is {found} instead of {expected}")


def shortened_json(value: Any, *, characters: int = 80) -> str:
    """A received value as JSON, truncated for an error message; see `envs.text.shortened`."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= characters else text[: characters - 1] + "…"
