"""Checks arguments of environments: seed and options of `reset`, and actions; errors of calls."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from envs.base import EnvSpec, FrameRequest
from envs.names import listed, nearest

# 1215 of the 8100 ordered pairs of two-digit numbers: enough for an accuracy to within 3 points
HELDOUT_SHARE = 0.15
KEPT_HERE = ("row", "frames")
"""Options of reset that JSON cannot hold. No list of options names them, because a client of `siirl
serve` may read it.
"""


class ResetOptions(NamedTuple):
    """The options that every environment accepts."""

    task: str
    frames: dict[str, FrameRequest]


def read_options(
    options: Mapping[str, Any] | None, *, spec: EnvSpec, further: Sequence[str] = ()
) -> ResetOptions:
    """Read task (default: the first of `spec.tasks`) and frame streams.

    `further` names the environment's additional options.

    Raises:
        ValueError: An unknown option or task, a row that the environment refuses, a frame stream
            that is not a FrameRequest, or frames of an environment without images.
    """
    options = options or {}
    if options.get("row") is not None and "row" not in further and spec.check_row is not None:
        spec.check_row(options["row"])  # its error says why the environment takes no rows
    known = ("task", "frames", *further)
    for name in options:
        if name not in known:
            raise ValueError(
                f"Unknown reset option {name!r}.{nearest(name, known)} "
                f"Known: {listed(name, sorted({*known} - {*KEPT_HERE}))}."
            )
    task = options.get("task", spec.tasks[0])
    if task not in spec.tasks:
        raise ValueError(
            f"Unknown task {task!r}.{nearest(task, spec.tasks)} "
            f"This environment has: {listed(task, spec.tasks)}."
        )
    frames = options.get("frames") or {}
    for stream, request in frames.items():
        if not isinstance(request, FrameRequest):
            raise ValueError(f"Frame stream {stream!r} must be a FrameRequest, got {request!r}.")
    if frames and not spec.renders:
        raise ValueError(
            f"Environment {spec.name!r} has no images: ask for no frames (got {', '.join(frames)})."
        )
    return ResetOptions(task, dict(frames))


def checked_tasks(tasks: Sequence[str] | str) -> Sequence[str]:
    """Return the requested tasks as a list.

    Raises:
        ValueError: The list is empty or has duplicates.
    """
    tasks = [tasks] if isinstance(tasks, str) else tasks
    if not tasks:
        raise ValueError(
            "tasks must be a list of one or more, got an empty one; null selects the environment's "
            "own tasks."
        )
    if len(set(tasks)) < len(tasks):
        raise ValueError(f"tasks has a task twice: {', '.join(tasks)}.")
    return tasks


def checked_choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Return `value` if it is one of the known names.

    Raises:
        ValueError: It is not; the message names the nearest one.
    """
    names = tuple(known)
    if value not in names:
        raise ValueError(
            f"Unknown {name} {value!r}.{nearest(value, names)} Known: {listed(value, names)}."
        )
    return str(value)


def check_counts(**counts: Any) -> None:
    """Require whole numbers of at least 1; None means no bound.

    Raises:
        ValueError: Another value.
    """
    for name, count in counts.items():
        if count is None:
            continue
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}.")


def check_heldout_share(share: float, *, may_be_zero: bool = True) -> None:
    """Require a share below 1, and above 0 unless a split may be empty.

    Raises:
        ValueError: Another number.
    """
    above_lower_end = share >= 0 if may_be_zero else share > 0
    if not (above_lower_end and share < 1):
        lower = "at least" if may_be_zero else "above"
        raise ValueError(f"heldout_share must be {lower} 0 and below 1, got {share}.")


def not_running() -> RuntimeError:
    """The error of a step that needs a running episode."""
    return RuntimeError("The episode has ended or was never started: call reset before step.")


def checked_seed(seed: int | None) -> int | None:
    """Return `seed` as a plain int (NumPy integers are accepted), or None for an unseeded episode.

    Raises:
        ValueError: A negative seed.
    """
    if seed is None:
        return None
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}.")
    return int(seed)


def checked_action(action: Any, *, space: spaces.Space[Any]) -> Any:
    """Return `action` in the form of `space`.

    An int for Discrete, an array of the space's dtype for Box, unchanged for other spaces.

    Raises:
        ValueError: Wrong shape or kind of number, NaN, or a value outside the space; the message
            names the fault.
    """
    if not isinstance(space, (spaces.Box, spaces.Discrete)):
        if not space.contains(action):
            raise ValueError(f"An action must be in {space}, got {action!r}.")
        return action
    array = np.asarray(action)
    if array.shape != space.shape:
        raise ValueError(f"An action must have shape {space.shape}, got {array.shape}.")
    if isinstance(space, spaces.Discrete):
        if array.dtype.kind not in "iu":
            raise ValueError(f"An action must be an integer, got {action!r}.")
        if not space.start <= int(array) < space.start + space.n:
            raise ValueError(
                f"An action must lie in [{space.start}, {space.start + space.n}), got {action!r}."
            )
        return int(array)
    wanted, kinds = (
        ("floating-point numbers", "f") if space.dtype.kind == "f" else ("integers", "iu")
    )
    if array.dtype.kind not in kinds:
        raise ValueError(f"An action must hold {wanted}, got dtype {array.dtype}.")
    if not np.isfinite(array).all():
        raise ValueError(f"An action must be finite, got {array}.")
    if (array < space.low).any() or (array > space.high).any():
        raise ValueError(f"An action must lie between {space.low} and {space.high}, got {array}.")
    return array.astype(space.dtype)
