"""`module:name`, the way a user's own class or function is named in the configuration."""

import importlib
import importlib.util
from typing import Any

from siirl.errors import ConfigError


def is_reference(name: str) -> bool:
    """Whether `name` has the form `module:name`."""
    return ":" in name


def check_reference(reference: str, *, place: str) -> None:
    """Refuse a reference of the wrong form or to a module that cannot be found; nothing but its parent packages is imported.

    Raises:
        ConfigError: With the place and the remedy.
    """
    module, _, name = reference.partition(":")
    if not module or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ConfigError(f"{place}={reference} is no reference: write module:name, for example my_package.my_module:MyClass.")
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise ConfigError(f"{place}={reference}: there is no module {module!r}. Install its package, or put its folder on PYTHONPATH.")


def load_reference(reference: str, *, place: str) -> Any:
    """Import what a reference names.

    Raises:
        ConfigError: No such module or name.
    """
    check_reference(reference, place=place)
    module, _, name = reference.partition(":")
    loaded = importlib.import_module(module)
    for part in name.split("."):
        try:
            loaded = getattr(loaded, part)
        except AttributeError as error:
            raise ConfigError(f"{place}={reference}: module {module!r} has no {name!r}.") from error
    return loaded
