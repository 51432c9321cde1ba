"""User config groups: `+user_groups.my_custom=my_module:MyCustomArguments` makes
`config.my_custom` an instance of that dataclass.

Its keys are set like all others (`my_custom.enable_feature=true`, or in a file given by
`--config`), checked against its fields and shown by `--help`. All fields need defaults; help comes
from their metadata.
"""

import dataclasses
from collections.abc import Mapping

from siirl.errors import ConfigError
from siirl.params.references import load_reference


def load_user_groups(references: Mapping[str, str], *, taken: frozenset[str]) -> dict[str, type]:
    """Import the dataclasses of `references` ({name: module:Dataclass}).

    Args:
        references: `config.user_groups`.
        taken: Names of the existing groups.

    Raises:
        ConfigError: A taken name, a missing module, or a class that is not a dataclass or lacks a
            default.
    """
    return {name: _load(name, reference, taken) for name, reference in references.items()}


def _load(name: str, reference: str, taken: frozenset[str]) -> type:
    place = f"user_groups.{name}"
    if name in taken:
        raise ConfigError(f"{place}: {name!r} is a built-in group; choose another name.")
    if not name.isidentifier():
        raise ConfigError(
            f"{place}: a group is read as config.<name>, so {name!r} must be a Python identifier."
        )
    cls = load_reference(str(reference), place=place)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ConfigError(
            f"{place}={reference} is not a dataclass: write @dataclass above the class."
        )
    required = [
        field.name
        for field in dataclasses.fields(cls)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if required:
        raise ConfigError(
            f"{place}={reference}: give {', '.join(required)} a default; every key needs one."
        )
    return cls
