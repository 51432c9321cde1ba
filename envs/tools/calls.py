r"""Parses tool calls in the form of Hermes and Qwen models, and describes tools to the model.

    <tool_call>
    {"name": "calculator", "arguments": {"expression": "17 * 23"}}
    </tool_call>

One turn may have several calls. The text between the tags is a JSON object with `name` and, unless
the tool takes none, `arguments`. Anything else is a `MalformedCall` with a reason for the model. A
call with an unclosed tag extends to the end of the text. The form is described at
https://huggingface.co/NousResearch/Hermes-Function-Calling-V1.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from envs.surrogates import check_surrogates
from envs.text import shortened

OPENING, CLOSING = "<tool_call>", "</tool_call>"
BLOCK = re.compile(rf"{OPENING}(.*?)(?:{CLOSING}|(?={OPENING})|\Z)", re.DOTALL)
SPACES = re.compile(r"[ \t\n\r]*")
JSON_READER = json.JSONDecoder()
MAX_NESTING = 50  # levels of arguments; the JSON reader recurses
MAX_CALLS = 64  # parsed in one text; further calls are ignored


class ToolCall(NamedTuple):
    """A well-formed call."""

    name: str
    arguments: dict[str, Any]


class MalformedCall(NamedTuple):
    """A malformed call."""

    reason: str


@dataclass(frozen=True)
class ToolDescription:
    """Description of a tool for the model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of an object."""


def read_calls(text: str) -> list[ToolCall | MalformedCall]:
    """Return the first `MAX_CALLS` calls in `text`, in order."""
    return [_read(block) for block in itertools.islice(_blocks(text), MAX_CALLS)]


def write_call(call: ToolCall) -> str:
    """Format one call as a model would; the inverse of `read_calls`."""
    return f"{OPENING}\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n{CLOSING}"


def announcement(tools: Iterable[ToolDescription]) -> str:
    """Format tools for a system message: how to call them, and their schemas, one JSON per line."""
    lines = [
        json.dumps(
            {
                "type": "function",
                "function": {
                    "name": t.name,
                    "description": t.description,
                    "parameters": t.parameters,
                },
            }
        )
        for t in tools
    ]
    return "\n".join(
        [
            "You can call the functions below, as often as the task needs. "
            "Each line describes one, with the schema of its arguments.",
            "<tools>",
            *lines,
            "</tools>",
            "To call one, write a JSON object with its name and arguments between these tags, "
            "and stop; the results come next:",
            f'{OPENING}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSING}',
            "A message without a call is your final answer.",
        ]
    )


def _blocks(text: str) -> Iterator[str]:
    """The texts between tags. A tag within a string of a JSON object is a part of that string."""
    at = 0
    while (block := BLOCK.search(text, at)) is not None:
        begin, end = block.span(1)
        end = max(end, _end_of_object(text, begin))
        yield text[begin:end]
        at = max(end, block.end())


def _end_of_object(text: str, begin: int) -> int:
    """End of the JSON object at `begin`, or behind spaces there; `begin` if there is none."""
    spaces = SPACES.match(text, begin)
    assert spaces is not None
    try:
        return JSON_READER.raw_decode(text, spaces.end())[1]
    except (ValueError, RecursionError):
        return begin


def _read(block: str) -> ToolCall | MalformedCall:
    if _nesting(block) > MAX_NESTING:
        return MalformedCall(f"its JSON nests deeper than {MAX_NESTING} levels")
    try:
        call = json.loads(block)
        check_surrogates(block, call)
    except ValueError as error:
        return MalformedCall(f"it is not JSON ({error})")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return MalformedCall(f'it must be {{"name": …, "arguments": {{…}}}}, got {shortened(call)}')
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return MalformedCall(
            f"the arguments of {shortened(call['name'])} must be an object, "
            f"got {shortened(arguments)}"
        )
    return ToolCall(call["name"], arguments)


def _nesting(block: str) -> int:
    """Upper bound of the nesting depth; also counts brackets in strings."""
    depth = deepest = 0
    for bracket in re.finditer(r"[\[\]{}]", block):
        depth += 1 if bracket[0] in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
