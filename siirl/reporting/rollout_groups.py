"""Groups text rollouts by prompt, for report.html: the best and the worst answer of each group.

Left out: videos of simulators (siirl.reporting.before_after).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siirl.reporting.rollout_view import TOOL_CALL, outcome, question

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Rollouts of one prompt in one step, best first."""

    rows: Sequence[Row]

    @property
    def question(self) -> str:
        """The prompt in one line."""
        return question(self.rows[0])

    @property
    def successes(self) -> int:
        """Rollouts that succeeded."""
        return sum(row["success"] is True for row in self.rows)

    @property
    def mean_reward(self) -> float | None:
        """Mean over the rollouts that have a reward."""
        rewards = [row["reward"] for row in self.rows if row["reward"] is not None]
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def extremes(self) -> list[tuple[str, Row]]:
        """The best and the worst rollout, or the only one."""
        if len(self.rows) == 1:
            return [("only", self.rows[0])]
        return [("best", self.rows[0]), ("worst", self.rows[-1])]

    @property
    def others(self) -> Sequence[Row]:
        """Rollouts between best and worst."""
        return self.rows[1:-1]

    @property
    def outcome(self) -> str:
        """`success` if all succeeded, `fail` if none did, else `mixed`; or `ungraded`."""
        if all(outcome(row) == "ungraded" for row in self.rows):
            return "ungraded"
        return {len(self.rows): "success", 0: "fail"}.get(self.successes, "mixed")


def groups(rows: Iterable[Row], *, most: int) -> list[Group]:
    """Up to `most` groups: first mixed ones, from which the policy learns, then failing ones."""
    by_prompt: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        by_prompt.setdefault((row["kind"], row["task"], row.get("group", row["uid"])), []).append(
            row
        )
    found = [Group(sorted(same, key=_worth, reverse=True)) for same in by_prompt.values()]
    order = {"mixed": 0, "fail": 1, "ungraded": 2, "success": 3}
    return sorted(found, key=lambda group: order[group.outcome])[:most]


def _worth(row: Row) -> tuple[float, bool]:
    reward = row["reward"]
    return (-1e300 if reward is None else float(reward), row["success"] is True)


def messages(row: Row) -> list[tuple[str, str]]:
    """(role, text) of each turn after the prompt; a tool call is shown as `name(arguments)`."""
    return [
        (entry["role"], TOOL_CALL.sub(_as_call, entry["content"])) for entry in row.get("turns", ())
    ]


def _as_call(match: re.Match[str]) -> str:
    try:
        call = json.loads(match[1])
    except (ValueError, RecursionError):
        return match[0]
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
        return match[0]
    given = ", ".join(f"{name}={value!r}" for name, value in call["arguments"].items())
    return f"{call.get('name')}({given})"
