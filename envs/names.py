"""Formats known names for error messages, and refuses names of a wrong form."""

import difflib
from collections.abc import Iterable, Sequence

LISTED = 16
"""Largest number of names in one message."""
TASKS = 10  # of a long list of tasks
LONGEST = 100  # characters of a task's name


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a sentence that suggests the nearest known name, or an empty string."""
    matches = close_matches(str(name), known)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def close_matches(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """Return the known names most like `name`, whatever their case: usually one, or none.

    Args:
        name: The unknown name.
        known: The names to choose from.
        cutoff: Least likeness, from 0 to 1; the default is difflib's.
    """
    lowered = {other: other.lower() for other in known}
    alike = difflib.get_close_matches(name.lower(), lowered.values(), n=1, cutoff=cutoff)
    return [other for other, lower in lowered.items() if lower in alike]


def listed(name: object, known: Iterable[str]) -> str:
    """Return the known names in order; if there are more than `LISTED`, those most like `name`."""
    names = list(known)
    if len(names) <= LISTED:
        return ", ".join(names) or "(none)"
    alike = sorted(names, key=lambda other: -_likeness(str(name), other))[:LISTED]
    others = len(names) - LISTED
    shown = ", ".join(other for other in names if other in alike)
    return f"{shown} and {others} other{'s' if others > 1 else ''}"


def refuse_path(module: str, *, what: str) -> None:
    """Raise ValueError for the path of a file, or a relative name, in place of a module's name."""
    if "/" in module or module.startswith(".") or module.endswith(".py"):
        raise ValueError(
            f"{what}: {module!r} is not the name of a module: write it with dots and without .py, "
            "as in my_package.my_module, and put its folder on PYTHONPATH."
        )


def listed_tasks(tasks: Sequence[str]) -> str:
    """Names of tasks; of a long list, such as the 90 tasks of a LIBERO suite, the first ones and
    the total. A long name is cut.
    """
    names = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in tasks[:TASKS]]
    left_out = len(tasks) - TASKS
    first = ", ".join(names)
    return first if left_out <= 0 else f"{first} and {left_out} more, {len(tasks)} tasks in all"


def _likeness(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()
