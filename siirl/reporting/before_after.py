"""Pairs the first and the last recording of the same held-out episode, failures first.

A recording is a row of the video index or of the rollout files: both have `kind`, `step`, `uid`,
`task` and `seed`. An evaluation repeats the same episodes, and the end of its uid names them
(`val-000040-sampled-000003`, siirl.dag_worker.validator).
"""

import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Row = Mapping[str, Any]
_UID = re.compile(r"val-\d+-(.+)", re.DOTALL)
_ORDER: dict[tuple[bool | None, bool | None], int] = {
    (True, False): 0,  # solved before, failed after
    (None, False): 1,
    (False, False): 1,
    (False, True): 2,
}


class Pair(NamedTuple):
    """One held-out episode at the first and at the last evaluation that recorded it."""

    before: Row
    after: Row

    @property
    def change(self) -> str:
        """Description of the episode's outcome."""
        was, now = succeeded(self.before), succeeded(self.after)
        if was is None or now is None:
            return "ungraded"
        return {
            (True, False): "lost",
            (False, False): "still fails",
            (False, True): "learnt",
            (True, True): "still succeeds",
        }[was, now]


def succeeded(row: Row) -> bool | None:
    """Success of a recorded episode; None if the environment does not grade it."""
    if isinstance(row.get("outcome"), str):  # of the video index
        return {"success": True, "fail": False}.get(row["outcome"])
    value = row.get("success")
    return value if isinstance(value, bool) else None


def pairs(rows: Iterable[Row], *, most: int) -> list[Pair]:
    """Up to `most` episodes that two evaluations recorded: first those that were solved before,
    then those that still fail, then newly solved ones.
    """
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        match = _UID.fullmatch(row["uid"]) if row["kind"] == "val" else None
        if match:
            found.setdefault((row["task"], row.get("seed"), match[1]), []).append(row)
    by_step = operator.itemgetter("step")
    both = [Pair(min(same, key=by_step), max(same, key=by_step)) for same in found.values()]
    both = [pair for pair in both if pair.before["step"] < pair.after["step"]]
    both.sort(key=lambda pair: _ORDER.get((succeeded(pair.before), succeeded(pair.after)), 3))
    return both[:most]
