"""Damage to a file of JSON: a key missing, a value of another type, bytes that are not text, a
folder in its place.
"""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies

JUNK = strategies.one_of(
    strategies.none(),
    strategies.booleans(),
    strategies.sampled_from([-1, 0, 1, 10**4, 10**30, 10**5000, 0.5, float("nan"), float("inf")]),
    strategies.sampled_from(["", "..", "/", "/etc/passwd", "a\0b", "\ud800", "x" * 300, "é"]),
    strategies.sampled_from([[], {}, [[]], [None], {"": None}, {"bytes": -1}, [1, "a", {}]]),
)


def places(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to every value of a document, its own place first."""
    yield above
    inner = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in inner:
        yield from places(value, (*above, key))


def changed(document: Any, place: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy of the document, with the holder of `place` changed."""
    result = copy.deepcopy(document)
    holder = result
    for key in place[:-1]:
        holder = holder[key]
    change(holder, place[-1])
    return result


def dumped(document: Any) -> bytes:
    """JSON; `json.dumps` refuses whole numbers of 5000 digits, which a damaged file may hold."""
    marked = (
        json.dumps(document, default=str)
        if not _has_long_number(document)
        else _with_long_number(document)
    )
    return marked.encode("utf-8", errors="surrogatepass")


@strategies.composite
def damaged_values(draw: strategies.DrawFn, document: dict[str, Any]) -> bytes:
    """A document with one value replaced, taken away or added to."""
    place = draw(strategies.sampled_from([place for place in places(document) if place]))
    kind = draw(strategies.sampled_from(["replaced", "missing", "added"]))
    if kind == "missing":
        return dumped(changed(document, place, lambda holder, key: holder.pop(key)))
    junk = draw(JUNK)
    if kind == "replaced":
        return dumped(changed(document, place, lambda holder, key: holder.__setitem__(key, junk)))

    def add(holder: Any, key: Any) -> None:
        holder.append(junk) if isinstance(holder, list) else holder.__setitem__(
            draw(strategies.text(max_size=5)), junk
        )

    return dumped(changed(document, place, add))


@strategies.composite
def damaged_bytes(draw: strategies.DrawFn, whole: bytes) -> bytes:
    """A file cut off, with a few bytes changed, or with something else in it."""
    kind = draw(strategies.sampled_from(["cut", "changed", "other"]))
    if kind == "cut":
        return whole[: draw(strategies.integers(0, len(whole) - 1))]
    if kind == "other":
        return draw(
            strategies.one_of(
                strategies.binary(max_size=60),
                strategies.sampled_from(
                    [
                        b"",
                        b"null",
                        b"[]",
                        b'"x"',
                        b"[" * 100_000,
                        b'{"a":' * 100_000,
                        b"\xff\xfe",
                        b"9" * 10_000,
                    ]
                ),
            )
        )
    content = bytearray(whole)
    for position in draw(
        strategies.lists(strategies.integers(0, len(whole) - 1), min_size=1, max_size=4)
    ):
        content[position] = draw(strategies.integers(0, 255))
    return bytes(content)


def damages(file: Path) -> strategies.SearchStrategy[bytes]:
    """Damaged contents of a whole file of JSON."""
    whole = file.read_bytes()
    return strategies.one_of(damaged_values(json.loads(whole)), damaged_bytes(whole))


LONG = 10**5000


def _has_long_number(document: Any) -> bool:
    if isinstance(document, dict):
        return any(map(_has_long_number, document.values()))
    return any(map(_has_long_number, document)) if isinstance(document, list) else document == LONG


def _with_long_number(document: Any) -> str:
    def marked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: marked(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [marked(inner) for inner in value]
        return "LONG" if value == LONG else value

    return json.dumps(marked(document)).replace('"LONG"', "1" + "0" * 5000)
