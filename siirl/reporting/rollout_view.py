"""Renders rollouts as text for the terminal and report.html: prompt, turns, answer and verdict."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from siirl.terminal.printable import printable

Row = Mapping[str, Any]
# Characters of the question and of the answer in a headline: both fit a terminal's line.
GIST_LENGTH = 40
QUESTION_LENGTH = 120
_STYLES = {"success": "green", "fail": "red", "ungraded": "yellow"}
TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_COLOURS = {"user": "cyan", "system": "magenta", "tool": "yellow", "assistant": "default"}


def headline(row: Row) -> str:
    """One line: shortened question and answer, outcome, verdict, reward, and data source."""
    return f"{_gist(row)}{verdict(row)}, {row['kind']} {row['task']}, step {row['step']}"


def verdict(row: Row) -> str:
    """Outcome, the grader's verdict, reward with its parts, tool calls, and truncation."""
    parts = [outcome(row)]
    if row.get("verdict") and row["verdict"] != "correct" and row["success"] is not None:
        parts.append(str(row["verdict"]))
    if row["reward"] is not None:
        parts.append(f"reward {row['reward']:.3g}{_parts_of_reward(row)}")
    if row["env_return"] not in (None, row["reward"]):
        parts.append(f"return {row['env_return']:.3g}")
    if row["truncated"]:
        parts.append("truncated")
    return ", ".join(parts)


def question(row: Row) -> str:
    """The prompt's last message, shortened to a line; the task's name without text."""
    asked = [text for role, text in chat(row) if role == "user"]
    return _shortened(asked[-1], QUESTION_LENGTH) if asked else str(row["task"])


def outcome(row: Row) -> str:
    """`success`, `fail`, or `ungraded` without a grade."""
    if row["success"] is None:
        return "ungraded"
    return "success" if row["success"] else "fail"


def chat(row: Row) -> list[tuple[str, str]]:
    """(role, text) of each message in order; empty for a rollout without text."""
    return [
        (entry["role"], entry["content"])
        for entry in (*row.get("prompt", ()), *row.get("turns", ()))
    ]


def footnote(row: Row) -> str:
    """The truth, turns, tool calls, the tokens, their mean log-prob and versions, and the id."""
    log_probs = [value for turn in row.get("turns", ()) for value in turn.get("log_probs", ())]
    tokens = (
        f"{len(log_probs)} token{'s' * (len(log_probs) > 1)}, "
        f"mean log-prob {sum(log_probs) / len(log_probs):.3f}"
        if log_probs
        else ""
    )
    truth = "" if row.get("ground_truth") is None else f"truth {row['ground_truth']}"
    calls = tool_calls(row)
    plural = "" if calls == 1 else "s"
    used = f"{calls} tool call{plural}" if calls else ""
    oldest = row["policy_version"]
    later = [value for turn in row.get("turns", ()) for value in turn.get("policy_versions", ())]
    newest = max(later, default=oldest)
    version = (
        f"policy version {oldest}" if newest == oldest else f"policy versions {oldest} to {newest}"
    )
    return ", ".join(filter(None, [truth, _turns(row), used, tokens, version, str(row["uid"])]))


def _turns(row: Row) -> str:
    turns = sum(role == "assistant" for role, _ in chat({"turns": row.get("turns", ())}))
    return f"{turns} turns" if turns > 1 else ""


def tool_calls(row: Row) -> int:
    """Tool calls that the policy wrote, in the chat format of Qwen and Hermes."""
    return sum(len(TOOL_CALL.findall(text)) for role, text in chat(row) if role == "assistant")


def show(rows: Sequence[Row], console: Console) -> None:
    """Print rollouts, each below a separator line."""
    for row in rows:
        console.rule(
            Text(printable(headline(row), keep="")), style=_STYLES[outcome(row)], align="left"
        )
        for role, content in chat(row):
            speaker = (printable(f"{role}: ", keep=""), f"bold {_COLOURS.get(role, 'default')}")
            console.print(Text.assemble(speaker, printable(content)), soft_wrap=True)
        console.print(Text(printable(footnote(row)), style="dim"), soft_wrap=True)


def _gist(row: Row) -> str:
    """The last prompt and the last response; empty for a rollout without text."""
    asked = [text for role, text in chat(row) if role == "user"]
    said = [text for role, text in chat(row) if role == "assistant"]
    return f"{_shortened(asked[-1])} -> {_shortened(said[-1])}: " if asked and said else ""


def _shortened(text: str, length: int = GIST_LENGTH) -> str:
    words = " ".join(text.split())
    return words if len(words) <= length else words[: length - 1] + "…"


def _parts_of_reward(row: Row) -> str:
    parts = {
        name: value for name, value in (row.get("reward_parts") or {}).items() if value is not None
    }
    if len(parts) == 1 and row["reward"] in parts.values():
        return ""
    return (
        f" ({', '.join(f'{name} {value:.3g}' for name, value in parts.items())})" if parts else ""
    )
