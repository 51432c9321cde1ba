"""Functions for a model to call, of all kinds; named `tests_envs_tools` where they run."""

import datetime
import os
import time
from typing import Literal


def add(first: int, second: int = 0) -> int:
    """Add two whole numbers.

    It is a plain sum.

    Args:
        first: One of them,
            told over two lines.
        second: The other.

    Returns:
        Their sum.
    """
    return first + second


async def shout(text: str, mark: Literal["!", "?"] = "!") -> str:
    return text.upper() + mark


def weekday(day: datetime.date) -> str:
    return day.strftime("%A")


def fail(reason: str) -> None:
    raise LookupError(reason)


def hang() -> None:
    time.sleep(600)


def die() -> None:
    os._exit(1)


def much() -> str:
    return "x" * 100_000


def listed(title: str, schema: int = 1, _hidden: int = 0) -> dict[str, object]:
    return {"title": title, "schema": schema, "_hidden": _hidden}


def positional(first: int, /) -> int:
    return first


def collect(*values: int) -> int:
    return sum(values)


NUMBER = 3
