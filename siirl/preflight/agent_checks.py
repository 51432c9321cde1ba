"""Checks of a run with agent groups (`agents`): each group's configuration as a separate job, and
features that such a run lacks.

Left out: names and sharing of the entries (`siirl.params.agents`), and whether the graph has their
nodes (`siirl.preflight.configured_graph`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError, UnknownNameError
from siirl.params import sizes
from siirl.params.agents import SHARES, entries_of, group_configs, keys_named_by, owners, place_of
from siirl.params.domains import SERVER, is_text
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.unread import unread_keys

Check = Callable[[SiiRLArguments], Sequence[SiirlError]]


def agent_problems(config: SiiRLArguments) -> Iterator[SiirlError]:
    """Settings of agents that exclude each other."""
    yield from _modes_of_two(config)
    yield from _servers_of_two(config.agent_configs, owners(config.agents))


def _modes_of_two(config: SiiRLArguments) -> Iterator[SiirlError]:
    """Separate ranks that would play a stream for one agent but blocks for another."""
    modes: dict[bool, int] = {}
    for group, own in config.agent_configs.items():
        streams = sizes.streams(config.trainer, config.dag, own.actor_rollout_ref.rollout)
        modes.setdefault(streams, group)
    if len(modes) > 1:
        yield ConfigError(
            f"{place_of(modes[True])} starts episodes continuously, but {place_of(modes[False])} "
            "step by step: a rollout rank does one of the two. Set actor_rollout_ref.rollout.mode "
            "for the run, not for an agent."
        )


def _servers_of_two(
    configs: Mapping[int, SiiRLArguments], owner_of: Mapping[int, int]
) -> Iterator[SiirlError]:
    """Inference servers that two policies name."""
    holders: dict[str, int] = {}
    for group in configs.keys() - owner_of.keys():
        rollout = configs[group].actor_rollout_ref.rollout
        for url in rollout.server.urls if rollout.name == SERVER else ():
            other = holders.setdefault(url, group)
            if other != group:
                yield ConfigError(
                    f"{place_of(group)}: actor_rollout_ref.rollout.server.urls has {url}, which "
                    f"{place_of(other)} also names: a server holds one policy. Start one server "
                    "for each group."
                )


def sharing_problems(
    configs: Mapping[int, SiiRLArguments],
    owner_of: Mapping[int, int],
    specs: Mapping[int, EnvSpec],
) -> Iterator[SiirlError]:
    """Shared weights that cannot act in each group's environment."""
    for group, owner in owner_of.items():
        if not (is_text(specs[group]) and is_text(specs[owner])):
            yield ConfigError(
                f"{place_of(group)}.{SHARES}={owner}: a robot's policy is built for its "
                f"environment ({specs[group].name}); only text agents share weights. Leave "
                f"{SHARES} out, or give one group both environments' tasks."
            )
        mine, theirs = (
            sizes.needs_reference(own.actor_rollout_ref.actor, own.algorithm)
            for own in (configs[group], configs[owner])
        )
        if mine and not theirs:
            yield ConfigError(
                f"{place_of(group)} has a KL to the reference, but group {owner}, whose weights it "
                "shares, loads no reference: give both the KL, or neither."
            )


def role_problems(config: SiiRLArguments, specs: Mapping[int, EnvSpec]) -> list[SiirlError]:
    """Roles of an environment's agents that no agent group plays."""
    found = {str(error): error for error in _roles(config, specs)}  # groups share environments
    return list(found.values())


def _roles(config: SiiRLArguments, specs: Mapping[int, EnvSpec]) -> Iterator[SiirlError]:
    groups = group_configs(config)
    for group, own in groups.items():
        names, played_by = specs[group].agent_names, own.env.played_by
        place = f"env.played_by={list(played_by)}"
        if not names:
            if played_by:
                yield ConfigError(
                    f"{place}: environment {specs[group].name!r} names no agents: leave it out."
                )
            continue
        listed, wanted = ", ".join(names), list(range(len(names)))
        if len(played_by) != len(names):
            yield ConfigError(
                f"{place} must give the agent group of each of {listed}, the agents of "
                f"{specs[group].name!r}: for example env.played_by={wanted} with "
                f"agents={{{', '.join(f'{number}: {{}}' for number in wanted)}}}."
            )
        for player in played_by:
            if player not in groups or not config.agent_configs:
                yield UnknownNameError.of(
                    kind=f"agent group in {place}",
                    name=str(player),
                    known=[str(known) for known in config.agent_configs],
                )
        if played_by and group not in played_by and len(played_by) == len(names):
            yield ConfigError(
                f"{place}: agent group {group} plays none of {listed}, so it would train on no "
                f"rows. Name it there, or remove {place_of(group)} and its nodes."
            )
        for player in {group, *played_by} & set(groups):
            workflow = groups[player].actor_rollout_ref.rollout.workflow
            if played_by and workflow is not None:
                yield ConfigError(
                    f"{place} with actor_rollout_ref.rollout.workflow={workflow} of agent "
                    f"{player}: only the shipped workflow hands turns to several agents. Leave one "
                    "of them out."
                )
            if player != group and played_by and not is_text(specs[player]):
                yield ConfigError(
                    f"{place}: agent {player} is a robot ({specs[player].name}) and does not "
                    "generate text. Name text agents."
                )


def by_group(config: SiiRLArguments, check: Check) -> list[SiirlError]:
    """Problems of every group's configuration, prefixed by the group; problems of all groups are
    reported once.
    """
    found = {group: list(check(own)) for group, own in group_configs(config).items()}
    if len(found) == 1 and not config.agent_configs:
        return next(iter(found.values()))
    sentences = [{str(error) for error in errors} for errors in found.values()]
    common = set.intersection(*sentences)
    first = next(iter(found.values()))
    problems = [error for error in first if str(error) in common]
    for group, errors in found.items():
        own = [error for error in errors if str(error) not in common]
        problems += [type(error)(f"{place_of(group)}: {error}") for error in own]
    return problems


def unread_of_agents(
    config: SiiRLArguments, specs: Mapping[int, EnvSpec], *, named: Collection[str]
) -> list[SiirlError]:
    """Keys of the run that no group reads, and keys of an entry that its group does not read."""
    unread: dict[int, dict[str, SiirlError]] = {}
    typed = {group: set(keys_named_by(entry)) for group, entry in entries_of(config.agents).items()}
    for group, own in config.agent_configs.items():
        text = is_text(specs[group])
        unread[group] = unread_keys(own, text=text, named={*named, *typed[group]})
    problems: list[SiirlError] = []
    for group, errors in unread.items():
        for key, error in errors.items():
            if key in typed[group]:
                problems.append(type(error)(f"{place_of(group)}: {error}"))
    first = next(iter(unread.values()))
    of_all = set.intersection(*(set(errors) for errors in unread.values()))
    of_entries = set().union(*typed.values())
    problems += [error for key, error in first.items() if key in of_all - of_entries]
    return problems
