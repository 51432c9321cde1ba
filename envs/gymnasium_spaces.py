"""Maps Gymnasium's spaces to the contract: leaves of an observation to its keys, actions to `Box`
or `Discrete`.

Observations. `Dict` and `Tuple` are walked to their leaves, in Gymnasium's order. Pictures are
stacked under `images`, texts (a mission) are joined by newlines under `instruction`, and all other
leaves are flattened into one float32 vector under `proprioception`.

Actions. `Discrete` counts from 0. All other actions become one float32 Box, with the leaves of
`Dict` and `Tuple` one after the other. A `Box` of any shape and floating-point type gives its
numbers. `MultiDiscrete`, `MultiBinary`, a `Box` of whole numbers and a `Discrete` leaf give
decisions: dimension i ranges over [-0.5, n_i - 0.5], and the nearest whole number is the decision,
so every decision has an equal share of the range.

Left out: observations and actions that are graphs, sequences or alternatives (`OneOf`), which have
no fixed size, and actions that are texts, which no policy of a simulator outputs. They are refused.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, Misbehaved, decision_space
from envs.gymnasium_pictures import PictureForm, may_be_meant_as_picture, picture_form
from envs.surrogates import without_surrogates
from envs.text import ModelText, shortened

MAX_INSTRUCTION_CHARACTERS = 1 << 16
MOST_VALUES = 1 << 22  # float32 represents the halves between this many whole numbers
Vector = spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete
"""Spaces of numbers or decisions, of fixed size."""

Path = tuple[str | int, ...]
"""Keys of `Dict` and positions in `Tuple` on the path to a leaf."""


class ObservationLayout:
    """Maps the leaves of a Gymnasium observation to the contract's keys."""

    def __init__(self, space: spaces.Space[Any], *, name: str) -> None:
        """Sort the leaves of `space`; `name` is the environment's id, for messages.

        Raises:
            ValueError: A leaf of no fixed size, images of several sizes, vectors without a number,
                or only texts.
        """
        self._name = name
        self._images: dict[Path, PictureForm] = {}
        self._texts: list[Path] = []
        self._vectors: dict[Path, spaces.Space[Any]] = {}
        entries: dict[str, spaces.Space[Any]] = {}
        self.notice = ""
        """Leaves that look like pictures but are read as numbers."""
        for path, leaf in _leaves(space):
            form = picture_form(leaf)
            if form is not None:
                self._images[path] = form
            elif _is_text(leaf):
                self._texts.append(path)
            elif isinstance(leaf, Vector):
                self._vectors[path] = leaf
                if may_be_meant_as_picture(leaf):
                    self.notice = (
                        f"the observation {leaf}{_at(path)} is read as numbers; a picture is uint8 "
                        "from 0 to 255, of shape [H, W, C] or [C, H, W]"
                    )
            else:
                raise ValueError(
                    f"Gymnasium environment {name!r} has observation {leaf}{_at(path)}, which is "
                    "not a vector, an image or a text: wrap the environment to make it one."
                )
        if self._vectors and not sum(map(spaces.flatdim, self._vectors.values())):
            raise ValueError(
                f"Gymnasium environment {name!r} has observation {space}, whose vectors contain no "
                "number: leave them out, or give them numbers."
            )
        if not self._images and not self._vectors:
            raise ValueError(
                f"Gymnasium environment {name!r} has observation {space}, which has neither "
                "a vector nor an image: env=gymnasium needs one for its policies."
            )
        sizes = {form.size for form in self._images.values()}
        if len(sizes) > 1:
            raise ValueError(
                f"Gymnasium environment {name!r} has images of several sizes, {sorted(sizes)}: "
                "they must share one."
            )
        if self._images:
            count = sum(form.count for form in self._images.values())
            entries[IMAGES] = spaces.Box(0, 255, (count, *sizes.pop(), 3), np.uint8)
        if self._vectors:
            flat: list[Any] = [spaces.flatten_space(leaf) for leaf in self._vectors.values()]
            low = np.concatenate([part.low.astype(np.float32) for part in flat])
            high = np.concatenate([part.high.astype(np.float32) for part in flat])
            entries[PROPRIOCEPTION] = spaces.Box(low, high, dtype=np.float32)
        if self._texts:
            entries[INSTRUCTION] = ModelText(MAX_INSTRUCTION_CHARACTERS)
        self.space = spaces.Dict(entries)

    def read(self, observation: Any) -> dict[str, Any]:
        """Return the observation in the contract's form, in new arrays.

        Raises:
            Misbehaved: A value that is not finite.
            IndexError, KeyError, TypeError, ValueError: A value outside the space.
        """
        result: dict[str, Any] = {}
        if self._images:
            result[IMAGES] = np.concatenate(
                [form.read(_part(observation, path)) for path, form in self._images.items()]
            )
        if self._vectors:
            leaves = {path: _part(observation, path) for path in self._vectors}
            with np.errstate(over="ignore"):  # gives infinity, which is refused
                parts = [_flat(leaf, leaves[path]) for path, leaf in self._vectors.items()]
                vector = np.concatenate([np.asarray(part, dtype=np.float32) for part in parts])
            if not np.isfinite(vector).all():
                whole = np.concatenate([np.ravel(value) for value in leaves.values()])
                cause = (
                    "beyond the range of float32, in which policies read it"
                    if np.isfinite(whole).all()
                    else "that is not finite"
                )
                raise Misbehaved(
                    f"Gymnasium environment {self._name!r} returned an observation {cause}: "
                    f"{whole}."
                )
            result[PROPRIOCEPTION] = vector
        if self._texts:
            texts = (_text(_part(observation, path)) for path in self._texts)
            result[INSTRUCTION] = "\n".join(texts)
        return result


class ActionLayout:
    """Maps the contract's actions to those of a Gymnasium environment."""

    def __init__(self, space: spaces.Space[Any], *, name: str) -> None:
        """Choose the contract's space; `name` is the environment's id, for messages.

        Raises:
            ValueError: A leaf that contains neither numbers nor decisions, or whole numbers without
                bounds.
        """
        self._native = space
        self._leaves: dict[Path, _Numbers | _Decisions] = {}
        self.space: spaces.Box | spaces.Discrete
        self.decisions: tuple[int, ...] = ()
        """See `EnvSpec.decisions`."""
        if isinstance(space, spaces.Discrete):
            self.space = spaces.Discrete(int(space.n))
            return
        self._leaves = {path: _action_leaf(leaf, path, name=name) for path, leaf in _leaves(space)}
        parts = list(self._leaves.values())
        if not parts:
            raise ValueError(_nothing_to_decide(space, name=name))
        sizes = [math.prod(part.space.shape) for part in parts]
        self._ends = np.cumsum(sizes)[:-1]  # where the vector is cut into leaves
        if all(part.counts for part in parts):
            self.decisions = tuple(count for part in parts for count in part.counts)
        low, high = (
            np.concatenate([np.ravel(getattr(part.space, side)) for part in parts])
            for side in ("low", "high")
        )
        self.space = spaces.Box(low, high)

    def native(self, action: Any) -> Any:
        """The environment's own action for `action`, which is in `space`."""
        if isinstance(self._native, spaces.Discrete):
            return action + int(self._native.start)
        values = np.split(action, self._ends)
        leaves = {
            path: leaf.native(found)
            for (path, leaf), found in zip(self._leaves.items(), values, strict=True)
        }
        return _composed(self._native, leaves)


class _Numbers:
    """A leaf of floating-point numbers."""

    counts = ()

    def __init__(self, native: spaces.Box) -> None:
        low, high = (side.astype(np.float32).reshape(-1) for side in (native.low, native.high))
        self.space = spaces.Box(low, high)
        self._native = native

    def native(self, values_A: NDArray[np.float32]) -> NDArray[Any]:
        """The leaf's own value for the numbers [A]."""
        native = self._native
        # the float32 bounds may exceed those of another type by rounding
        values = values_A.astype(native.dtype).reshape(native.shape)
        return np.asarray(np.clip(values, native.low, native.high))


class _Decisions:
    """A leaf of decisions, each the nearest whole number."""

    def __init__(self, native: Vector, *, name: str) -> None:
        self._first_A, counts_A = _decisions(native, name=name)
        self.counts = tuple(counts_A.tolist())
        self.space = decision_space(self.counts)
        self._native = native

    def native(self, values_A: NDArray[np.float32]) -> Any:
        """The leaf's own value for the numbers [A]."""
        highest_A = np.asarray(self.counts) - 1
        counted_A = np.clip(np.floor(values_A + 0.5).astype(np.int64), 0, highest_A)
        found = (counted_A + self._first_A).reshape(self._native.shape or ())
        return found.astype(self._native.dtype)[()]


def _action_leaf(space: spaces.Space[Any], path: Path, *, name: str) -> _Numbers | _Decisions:
    if isinstance(space, Vector) and not spaces.flatdim(space):
        raise ValueError(_nothing_to_decide(space, name=name))
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        return _Numbers(space)
    if isinstance(space, Vector):
        return _Decisions(space, name=name)
    raise ValueError(
        f"Gymnasium environment {name!r} has actions {space}{_at(path)}: only Box, Discrete, "
        "MultiDiscrete, MultiBinary, and Dict and Tuple of these, are supported; wrap the "
        "environment so that it takes one of them."
    )


def _nothing_to_decide(space: spaces.Space[Any], *, name: str) -> str:
    return (
        f"Gymnasium environment {name!r} has actions {space}, which contain no number: there is "
        "nothing to decide."
    )


def _composed(space: spaces.Space[Any], leaves: Mapping[Path, Any], path: Path = ()) -> Any:
    """The inverse of `_leaves`."""
    if isinstance(space, spaces.Dict):
        return {key: _composed(part, leaves, (*path, key)) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            _composed(part, leaves, (*path, place)) for place, part in enumerate(space.spaces)
        )
    return leaves[path]


def _flat(leaf: spaces.Space[Any], value: Any) -> NDArray[Any]:
    """A member of a space of `Vector` as a vector; Gymnasium's own function checks nothing.

    Raises:
        ValueError: The value is not a member. Numbers beyond the bounds of a Box are accepted,
            because working simulators return them.
    """
    array, shape = np.asarray(value), leaf.shape or ()
    if value is None or array.size != math.prod(shape):
        found = "None" if value is None else f"a value of shape {array.shape}"
        raise ValueError(f"{found} where the shape is {shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{shortened(value)} where numbers are expected")
    if isinstance(leaf, spaces.Box):
        return np.asarray(spaces.flatten(leaf, array))
    with np.errstate(invalid="ignore"):  # NaN differs from every whole number
        member = array.reshape(shape).astype(leaf.dtype)
    if (member != array.reshape(shape)).any() or not leaf.contains(member):
        raise ValueError(f"{shortened(value)} is not a member of {leaf}")
    return np.asarray(spaces.flatten(leaf, member))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shortened(value)} where a text is expected")
    return without_surrogates(value)


def _leaves(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for place, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, place))
    else:
        yield path, space


def _part(observation: Any, path: Path) -> Any:
    for key in path:
        observation = observation[key]
    return observation


def _at(path: Path) -> str:
    return f" at {'.'.join(map(str, path))!r}" if path else ""


def _decisions(space: Vector, *, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First value and number of values of each decision, int64 [A] each."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.start], np.int64), np.array([space.n], np.int64)
    if isinstance(space, spaces.MultiBinary):
        size = math.prod(space.shape)
        return np.zeros(size, np.int64), np.full(size, 2, np.int64)
    if isinstance(space, spaces.MultiDiscrete):
        return (
            np.asarray(space.start, np.int64).reshape(-1),
            np.asarray(space.nvec, np.int64).reshape(-1),
        )
    low, high = (side.astype(np.float64).reshape(-1) for side in (space.low, space.high))
    if not space.is_bounded() or (high - low >= MOST_VALUES).any():
        raise ValueError(
            f"Gymnasium environment {name!r} has actions {space}, whole numbers with more than "
            f"{MOST_VALUES} values: give the space closer bounds, or make it floating-point."
        )
    return low.astype(np.int64), (high - low).astype(np.int64) + 1


def _is_text(space: spaces.Space[Any]) -> bool:
    """Whether members are strings: `Text`, and spaces of packages such as MiniGrid's missions."""
    return space.dtype is not None and space.dtype.kind == "U"
