"""Converts messages, tools and responses between the package `verifiers` and `envs.text`."""

import importlib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from envs.text import ROLES, Message, Role, message
from envs.tools.calls import ToolCall, ToolDescription, announcement, read_calls, write_call


def response_of(text: str, tools: Any) -> Any:
    """The package's response with the model's text, and its tool calls as separate entries."""
    types = importlib.import_module("verifiers.types")
    calls = [call for call in read_calls(text) if isinstance(call, ToolCall)] if tools else []
    said = types.ResponseMessage(
        content=text,
        tool_calls=[
            types.ToolCall(id=f"call-{n}", name=call.name, arguments=json.dumps(call.arguments))
            for n, call in enumerate(calls)
        ]
        or None,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )
    return types.Response(
        id=uuid.uuid4().hex, created=int(time.time()), model="policy", message=said
    )


def plain_message(entry: Any) -> Message:
    """A message of the package as role and text."""
    fields = entry if isinstance(entry, Mapping) else entry.model_dump()
    role, content = str(fields.get("role")), fields.get("content")
    if isinstance(content, list):
        kinds = {part.get("type") for part in content}
        if kinds - {"text"}:
            raise ValueError(f"a message has parts of the kinds {sorted(map(str, kinds))}")
        content = "".join(part["text"] for part in content)
    calls = [
        write_call(ToolCall(call["name"], json.loads(call["arguments"])))
        for call in fields.get("tool_calls") or []
        if not content
    ]
    text = "\n".join([*([str(content)] if content else []), *calls])
    return message(cast(Role, role if role in ROLES else "user"), text)


def comparable(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Messages in a comparable form."""
    return [(entry["role"], entry["content"]) for entry in messages]


def with_tools(messages: Sequence[Message], tools: Any) -> list[Message]:
    """A prompt that lists the tools."""
    described = [ToolDescription(one.name, one.description, one.parameters) for one in tools or []]
    if not described:
        return list(messages)
    said = announcement(described)
    if messages[0]["role"] == "system":
        return [message("system", f"{messages[0]['content']}\n\n{said}"), *messages[1:]]
    return [message("system", said), *messages]
