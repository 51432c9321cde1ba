"""Checks of a run with agent groups (`agents`): each group's configuration as a job of its own, and
what such a run cannot do.

Left out: names and sharing of the entries (`siirl.params.agents`), and whether the graph has their
nodes (`siirl.preflight.prepare`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.agents import SHARES, entries_of, group_configs, keys_named_by, owners, place_of
from siirl.params.domains import is_text
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.unread import unread_keys

Check = Callable[[SiiRLArguments], Sequence[SiirlError]]


def agent_problems(config: SiiRLArguments) -> Iterator[SiirlError]:
    """Settings of the run that need a single policy."""
    if config.agent_configs and sizes.separate(config):
        yield ConfigError(
            f"dag.groups with agents={{{', '.join(map(str, config.agent_configs))}: …}}: ranks of "
            "their own for rollouts and training serve one policy. Leave dag.groups out, or start "
            "a run for each agent."
        )


def sharing_problems(config: SiiRLArguments, specs: Mapping[int, EnvSpec]) -> Iterator[SiirlError]:
    """Shared weights that cannot act in each group's environment."""
    for group, owner in owners(config).items():
        if not (is_text(specs[group]) and is_text(specs[owner])):
            yield ConfigError(
                f"{place_of(group)}.{SHARES}={owner}: a robot's policy is built for its "
                f"environment ({specs[group].name}); only text agents share weights. Leave "
                f"{SHARES} out, or give one group both environments' tasks."
            )
        configs = config.agent_configs
        if sizes.needs_reference(configs[group]) and not sizes.needs_reference(configs[owner]):
            yield ConfigError(
                f"{place_of(group)} has a KL to the reference, and group {owner}, whose weights "
                "it shares, loads none: give both the KL, or neither."
            )


def by_group(config: SiiRLArguments, check: Check) -> list[SiirlError]:
    """Problems of every group's configuration, with the group in front; those of all once."""
    found = {group: list(check(own)) for group, own in group_configs(config).items()}
    if len(found) == 1 and not config.agent_configs:
        return next(iter(found.values()))
    sentences = [{str(error) for error in errors} for errors in found.values()]
    common = set.intersection(*sentences)
    first = next(iter(found.values()))
    return [
        *(error for error in first if str(error) in common),
        *(
            type(error)(f"{place_of(group)}: {error}")
            for group, errors in found.items()
            for error in errors
            if str(error) not in common
        ),
    ]


def unread_of_agents(
    config: SiiRLArguments, specs: Mapping[int, EnvSpec], *, named: Collection[str]
) -> list[SiirlError]:
    """Keys of the run that no group reads, and keys of an entry that its group does not read."""
    unread: dict[int, dict[str, SiirlError]] = {}
    typed = {group: set(keys_named_by(entry)) for group, entry in entries_of(config).items()}
    for group, own in config.agent_configs.items():
        text = is_text(specs[group])
        unread[group] = unread_keys(own, text=text, named={*named, *typed[group]})
    of_entries = [
        type(error)(f"{place_of(group)}: {error}")
        for group, errors in unread.items()
        for key, error in errors.items()
        if key in typed[group]
    ]
    first = next(iter(unread.values()))
    of_run = [
        error
        for key, error in first.items()
        if all(key in errors for errors in unread.values())
        and not any(key in keys for keys in typed.values())
    ]
    return of_entries + of_run
