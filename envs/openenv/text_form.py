"""An OpenEnv environment as text: its observations as chat messages, the model's text as its
action.

**Observation.** The field `observation_field`; else the only text among the nonempty fields; else
all of these as one line of JSON. The first observation is a user message after `instructions`, and
tool results have the role `tool`.

**Action.** With tools (the server answers MCP's `tools/list`), calls in the form of
`envs.tools.calls` are read from the text, and each is one step. Any other text goes into
`action_field`. Its default is the only required text field of the action schema, or the only field.
An action of several fields is a JSON object that the model writes; any other text is answered with
`Error: …`. If tools are the only actions, a text without calls ends the episode.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.names import listed, nearest
from envs.surrogates import without_surrogates
from envs.text import Message, message, shortened
from envs.tools.calls import ToolCall, ToolDescription, announcement

SET_BY_SERVER = ("metadata", "type")
HIDDEN = ("metadata", "done", "reward")
TOOL_NAME = "tool_name"  # a field of openenv-core's CallToolAction


@dataclass(frozen=True)
class TextForm:
    """How one server's observations and actions are read and written."""

    action_field: str | None
    """Field that holds the model's text; None for JSON objects and for tools alone."""
    schema: Mapping[str, Any] | None
    """Schema of an action that the model writes as JSON."""
    tools_only: bool
    observation_field: str | None
    instructions: str
    max_observation_characters: int
    tools: Sequence[ToolDescription] = field(default=())

    @classmethod
    def of(
        cls,
        schema: Mapping[str, Any] | None,
        *,
        observation_fields: Sequence[str] = (),
        url: str,
        action_field: str | None,
        observation_field: str | None,
        instructions: str,
        max_observation_characters: int,
    ) -> "TextForm":
        """Choose the form from the server's action schema.

        `observation_fields` are those of its observations, empty if unknown. They are not compared
        where tools are the only actions, since the schema is then that of a tool's result.

        Raises:
            ValueError: A field that is not among those of the schema, or neither schema nor field.
        """
        found = dict((schema or {}).get("properties", {}))
        properties = {name: part for name, part in found.items() if name not in SET_BY_SERVER}
        if schema is None and action_field is None:
            raise ValueError(
                f"The server at {url} publishes no action schema: name the field that takes the "
                "text in env.kwargs.action_field."
            )
        if found and action_field is not None and action_field not in properties:
            raise ValueError(
                f"env.kwargs.action_field={action_field} is not a field of an action; "
                f"known: {', '.join(properties) or 'none'}."
            )
        tools_only = action_field is None and (TOOL_NAME in properties or not properties)
        shown = [name for name in observation_fields if name not in HIDDEN]
        if shown and not tools_only and observation_field not in (None, *shown):
            raise ValueError(
                f"env.kwargs.observation_field={observation_field} is not a field of an "
                f"observation.{nearest(observation_field, shown)} Known: "
                f"{listed(observation_field, shown)}."
            )
        chosen = action_field
        if chosen is None and not tools_only:
            chosen = _text_field(properties, required=(schema or {}).get("required", ()))
        return cls(
            action_field=chosen,
            schema=None if tools_only or chosen is not None else schema,
            tools_only=tools_only,
            observation_field=observation_field,
            instructions=instructions,
            max_observation_characters=max_observation_characters,
        )

    def prompt(self, observation: Mapping[str, Any]) -> list[Message]:
        """The messages of the first observation; empty if there is nothing to show."""
        parts = [self.instructions] if self.instructions else []
        if self.tools:
            parts.append(announcement(self.tools))
        elif self.schema is not None:
            parts.append(
                "Answer with one JSON object of this schema, and nothing else: "
                + json.dumps(self.schema)
            )
        opening, shown = "\n\n".join(parts), self.shown(observation)
        if not shown:
            return [message("user", opening)] if opening else []
        return [
            *([message("system", opening)] if opening else []),
            message("user", shown),
        ]

    def shown(self, observation: Mapping[str, Any]) -> str:
        """One observation as text.

        Raises:
            ValueError: The observation lacks `observation_field`.
        """
        if self.observation_field is None:
            return self._cut(_as_text(observation))
        if self.observation_field not in observation:
            raise ValueError(
                f"the observation has no field {self.observation_field!r} "
                f"(env.kwargs.observation_field); it has: {', '.join(observation) or 'none'}"
            )
        value = observation[self.observation_field]
        return self._cut(value if isinstance(value, str) else json.dumps(value))

    def action(self, text: str) -> dict[str, Any] | str:
        """The action of a text without calls, or a str that tells the model why there is none."""
        if self.action_field is not None:
            return {self.action_field: text}
        try:
            action = json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"the action is not JSON ({error})"
        if not isinstance(action, dict):
            return f"the action must be a JSON object, got {shortened(action)}"
        return action

    def call(self, call: ToolCall) -> dict[str, Any]:
        """The action of one call, openenv-core's CallToolAction."""
        return {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}

    def _cut(self, text: str) -> str:
        left_out = len(text) - self.max_observation_characters
        if left_out > 0:
            text = f"{text[: self.max_observation_characters]}… ({left_out} more characters)"
        return without_surrogates(text)


def _as_text(observation: Mapping[str, Any]) -> str:
    held = {
        name: value
        for name, value in observation.items()
        if name not in HIDDEN and value not in (None, "", [], {})
    }
    if not held:
        return ""
    values = list(held.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(held)


def _text_field(properties: Mapping[str, Any], *, required: Any) -> str | None:
    texts = [
        name
        for name, part in properties.items()
        if isinstance(part, dict) and part.get("type") == "string"
    ]
    needed = [name for name in properties if isinstance(required, list) and name in required]
    if len(needed) == 1 and needed[0] in texts:
        return needed[0]
    return texts[0] if len(properties) == 1 and texts else None
