"""Keys of a node's `config` that siirl reads, with their values; a user's function may read others.

A stage of siirl reads no further key, so that one there has no effect and is refused.
"""

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from siirl.errors import ConfigError
from siirl.execution.dag.function_names import describe

BUFFER = "buffer"
"""Buffer of a PUT_TO_BUFFER or GET_FROM_BUFFER node."""
MODEL_PARAMETERS = "model_parameters"
"""Parameter count of the model that a node runs."""


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


FITS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    BUFFER: ("text, the buffer's name (quote what YAML reads as another type)", _is_text),
    MODEL_PARAMETERS: (
        "a whole number of at least 1, the parameters of the node's model",
        _is_count,
    ),
}


def check_config(
    config: Mapping[Any, Any],
    function: Callable[..., Any] | None,
    *,
    read: frozenset[str],
    owner: str,
) -> None:
    """Refuse a value that siirl cannot use, and a key that a stage of siirl does not read.

    Args:
        config: The node's.
        function: The node's.
        read: Keys that siirl reads from a node of its type and role.
        owner: The node, for messages.

    Raises:
        ConfigError: Names the node, the key and the remedy.
    """
    for key in sorted(read):
        meaning, fits = FITS[key]
        if key in config and not fits(config[key]):
            raise ConfigError(
                f"{owner}: config.{key} must be {meaning}, but is {reprlib.repr(config[key])}."
            )
    if function is None or not _is_of_siirl(function):
        return
    unread = [reprlib.repr(key) for key in config if key not in read]
    if unread:
        known = f"It reads {', '.join(sorted(read))}. " if read else ""
        raise ConfigError(
            f"{owner}: {describe(function)} does not read {', '.join(unread)} of the node's "
            f"config. {known}Remove what it does not read, or name your own function, which may "
            "read any key from `node.config`."
        )


def _is_of_siirl(function: Callable[..., Any]) -> bool:
    """Whether the function's code is siirl's (`functools.wraps` copies `__module__`)."""
    module = getattr(function, "__globals__", {}).get("__name__", "")
    return str(module).partition(".")[0] == "siirl"
