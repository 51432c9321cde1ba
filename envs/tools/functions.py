"""Python functions as tools: schemas from signatures, calls in killable processes.

    FunctionTools(["my_module:look_up"])

A function's description has the first paragraph of its docstring, its parameters' types, and their
entries under `Args:`. The model gets a `str` result unchanged, and anything else as JSON. Calls of
several episodes share processes, so a function must not keep state.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from envs.tools.calls import ToolDescription
from envs.tools.signatures import function_and_model
from envs.tools.toolset import (
    ToolError,
    Toolset,
    ToolsMissing,
    ToolStopped,
    two_of_a_name,
)
from envs.worker_pool import (
    WorkerKilled,
    WorkerPool,
    WorkerRaised,
    WorkerSettings,
    WorkerUnavailable,
    lease,
    release,
)


class FunctionTools(Toolset):
    """Functions named by `module:function`."""

    origin = "the Python functions"

    def __init__(
        self, references: Sequence[str], *, deadline_s: float = 10.0, num_workers: int = 2
    ) -> None:
        """Import the functions and read their signatures; starts no process.

        Args:
            references: Each is `module:function`; the names after the colon must differ.
            deadline_s: Deadline of a call in seconds; its process is then killed.
            num_workers: Number of processes, shared by all environments of this process.

        Raises:
            ValueError: No such function, or a signature without a schema.
        """
        self.deadline_s = deadline_s
        self._references: dict[str, str] = {}
        self._arguments: dict[str, type[pydantic.BaseModel]] = {}
        self._descriptions: list[ToolDescription] = []
        for reference in references:
            function, model = function_and_model(reference)
            name = function.__name__
            if name in self._references:
                owners = (f"the Python function {r!r}" for r in (self._references[name], reference))
                raise ValueError(two_of_a_name(name, *owners))
            self._references[name], self._arguments[name] = reference, model
            self._descriptions.append(_describe(function, model))
        self._settings = WorkerSettings(
            target="envs.tools.signatures:call_function",
            num_workers=num_workers,
            deadline_s=deadline_s,
        )
        self._workers: WorkerPool | None = None

    async def descriptions(self) -> Sequence[ToolDescription]:
        """See `Toolset.descriptions`."""
        return self._descriptions

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """See `Toolset.call`; invalid arguments never reach the function."""
        try:
            self._arguments[name].model_validate(dict(arguments))
        except pydantic.ValidationError as error:
            raise ToolError(f"wrong arguments: {_listed_errors(error)}") from error
        if self._workers is None:
            self._workers = lease(self._settings)
        try:
            result = await self._workers.call(
                {"function": self._references[name], "arguments": dict(arguments)}
            )
        except WorkerRaised as error:
            raise ToolError(str(error)) from error
        except WorkerKilled as error:
            raise ToolStopped(f"it was stopped: {error}") from error
        except WorkerUnavailable as error:
            raise ToolsMissing(str(error)) from error
        return result if isinstance(result, str) else json.dumps(result)

    async def close(self) -> None:
        """See `Toolset.close`."""
        if self._workers is not None:
            release(self._workers)
            self._workers = None


def _describe(function: Callable[..., Any], model: type[pydantic.BaseModel]) -> ToolDescription:
    documentation = inspect.getdoc(function) or ""
    description = " ".join(documentation.partition("\n\n")[0].split())
    return ToolDescription(
        function.__name__, description, _without_titles(model.model_json_schema())
    )


def _without_titles(schema: Any) -> Any:
    """`schema` without pydantic's titles, which repeat names; keeps a parameter called `title`."""
    if isinstance(schema, list):
        return [_without_titles(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs"):
            kept[key] = {name: _without_titles(entry) for name, entry in value.items()}
        else:
            kept[key] = _without_titles(value)
    return kept


def _listed_errors(error: pydantic.ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, entry['loc'])) or 'arguments'}: {entry['msg']}"
        for entry in error.errors()
    )
