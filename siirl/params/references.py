"""`module:name` references to user code: checked, imported, and checked against a call."""

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.mistakes import user_code
from siirl.errors import ConfigError, UnknownNameError


def is_reference(name: str) -> bool:
    """Whether `name` has the form `module:name`."""
    return ":" in name


def check_reference(reference: str, *, place: str) -> None:
    """Refuse a malformed reference or a missing module; imports only its parent packages.

    Raises:
        ConfigError: With the place and the remedy.
    """
    module, _, name = reference.partition(":")
    if not module or not all(
        part.isidentifier() for part in (*module.split("."), *name.split("."))
    ):
        raise ConfigError(
            f"{place}={reference} is not a reference: write module:name, for example "
            "my_package.my_module:MyClass."
        )
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise ConfigError(
            f"{place}={reference}: there is no module {module!r}. Install its package, or put "
            "its folder on PYTHONPATH."
        )


def load_reference(reference: str, *, place: str) -> Any:
    """Import the object that a reference names.

    Raises:
        ConfigError: No such module or name, or a module that raises while it is imported.
    """
    check_reference(reference, place=place)
    module, _, name = reference.partition(":")
    with user_code(
        lambda raised: ConfigError(f"{place}={reference}: importing {module!r} raised {raised}.")
    ):
        loaded: Any = importlib.import_module(module)
    for part in name.split("."):
        try:
            loaded = getattr(loaded, part)
        except AttributeError as error:
            raise ConfigError(f"{place}={reference}: module {module!r} has no {name!r}.") from error
    return loaded


def check_options(options: Mapping[str, Any], *readers: Callable[..., Any]) -> None:
    """Refuse an option of a shipped policy that is not a keyword-only parameter of its readers.

    Raises:
        UnknownNameError: Lists the known ones except `weights`, which users do not set.
    """
    known: set[str] = set()
    for reader in readers:
        parameters = inspect.signature(reader).parameters.values()
        known |= {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    known.discard("weights")
    for name in options:
        if name not in known:
            raise UnknownNameError.of(
                kind="option (actor_rollout_ref.model.options)", name=name, known=known
            )


def check_call(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    *,
    place: str,
    call: str,
) -> None:
    """Refuse an object that does not take these arguments, without calling it.

    Args:
        function: The referenced object.
        arguments: Positional arguments of the call.
        options: Keyword arguments of the call.
        place: `key=reference`, for messages.
        call: The call as text, for messages: `(spec, path, **options)`.

    Raises:
        ConfigError: It is not callable, or its signature differs.
    """
    if not callable(function):
        raise ConfigError(
            f"{place} is of type {type(function).__name__} and cannot be called: it is called "
            f"with {call}."
        )
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some classes that are written in C have no signature
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise ConfigError(
            f"{place} is called with {call}, which its signature {signature} does not take: "
            f"{error}."
        ) from error
