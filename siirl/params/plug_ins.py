"""Plug-ins: keys that take `module:name` or a registered name, and modules that register names.

All plug-ins share one mechanism. A key declared with `plug_in=True` takes one of its `choices`,
`module:name`, or a name that a user module registers; `siirl.dag_worker.registries` holds the
registries. This module needs no torch: it locates references without importing them, and refuses an
unknown name if the job has no user module that could register it.
"""

import functools
import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

from envs.mistakes import user_code
from siirl.errors import ConfigError, SiirlError, UnknownNameError
from siirl.params.references import check_reference, is_reference
from siirl.params.schema import Key, keys_of
from siirl.params.training_args import SiiRLArguments

PLACE = "user_modules"
ANY_REFERENCE = "module:name"


def plug_ins(config: SiiRLArguments) -> Iterator[tuple[Key, str]]:
    """The keys that take plug-ins, each with the names in its value."""
    for key in keys_of(SiiRLArguments):
        if key.metadata["plug_in"]:
            value: Any = functools.reduce(getattr, key.place.split("."), config)
            yield from (
                (key, name)
                for name in (value if isinstance(value, tuple) else (value,))
                if name is not None
            )


def plug_in_problems(config: SiiRLArguments) -> Iterator[SiirlError]:
    """Errors for references that cannot be found, and for names that no module can register."""
    for key, name in plug_ins(config):
        if is_reference(name):
            try:
                check_reference(name, place=key.place)
            except ConfigError as error:
                yield error
        elif name not in key.metadata["choices"] and not _may_register(config):
            yield UnknownNameError.of(
                kind=key.place, name=name, known=[*key.metadata["choices"], ANY_REFERENCE]
            )


def import_user_modules(modules: Iterable[str]) -> None:
    """Import `user_modules` in order; every process calls this before it looks up a name.

    Raises:
        ConfigError: No such module, or one that raises while it is imported.
    """
    for name in modules:
        _import(name)


def _import(name: str) -> None:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f"{PLACE}={name} is not a module: write its dotted name, for example "
            f"{PLACE}=[my_package.registrations]."
        )
    with user_code(
        lambda raised: ConfigError(
            f"{PLACE}={name}: importing it raised {raised}. Fix the module, or remove it."
        )
    ):
        try:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name
            if not f"{name}.".startswith(f"{missing}."):
                raise
        else:
            return
    raise ConfigError(
        f"{PLACE}={name}: there is no module {missing!r}. Install it, or put its folder on "
        "PYTHONPATH."
    )


def _may_register(config: SiiRLArguments) -> bool:
    """Whether the configuration names user code, whose import may register names."""
    named = (
        config.env.name,
        config.reward.name,
        config.actor_rollout_ref.model.policy,
        *(name for _, name in plug_ins(config)),
    )
    return bool(config.user_modules or config.user_groups or config.dag.own_graph) or any(
        map(is_reference, named)
    )
