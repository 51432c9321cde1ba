"""Agent groups: each has the run's configuration, overridden by its entry of `agents`.

    agents: {0: {}, 1: {env: math, actor_rollout_ref: {actor: {optim: {lr: 1e-4}}}}}

An entry may hold everything that a command line may: keys, and groups such as `env=math` with their
defaults. Length, ranks and graph are set for the whole run. With `shares: 0` a group acts with and
trains the weights of group 0, but has its own environment, prompts, reward, advantage, loss and
number of rollouts. Left out: which nodes belong to a group (see the graph), and what a group builds
(`siirl.dag_worker.agent_groups`).
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from siirl.errors import ConfigError, UnknownNameError
from siirl.params import sizes
from siirl.params.model_args import ActorRolloutRefArguments
from siirl.params.training_args import SiiRLArguments

if TYPE_CHECKING:  # imports numpy, which --help does not need
    from envs.base import EnvSpec

OF_THE_RUN = ("trainer", "dag", "cluster", "profiler", "user_modules", "user_groups", "agents")
"""Parts of the configuration that all groups share."""
SHARES = "shares"
OF_THE_ENGINE = ("name", "mode", "temperature", "top_p", "top_k", "max_log_prob_gap")
OF_THE_TRAINING = ("optim", "max_grad_norm", "micro_batch_size", "micro_batch_tokens")
OF_THE_WEIGHTS = (
    "model",
    "critic",
    "actor_rollout_ref.model",
    "actor_rollout_ref.ref",
    *(f"actor_rollout_ref.actor.{name}" for name in OF_THE_TRAINING),
    *(f"actor_rollout_ref.rollout.{name}" for name in OF_THE_ENGINE),
)
"""Settings of the weights, and of the engines that act with and train them."""

MOST_DIGITS = 6  # of a group's number

Parse = Callable[[Mapping[str, Any], str], SiiRLArguments]
"""Parses keys over the run's configuration; the second argument is the keys' place."""


def configs_of_entries(config: SiiRLArguments, *, parse: Parse) -> dict[int, SiiRLArguments]:
    """The configuration of each entry of `agents`, by its number.

    Raises:
        ConfigError: An invalid group number, an entry without keys, keys of the whole run, or
            weights that no group has.
    """
    entries = entries_of(config.agents)
    shared = _shares(entries)
    found: dict[int, SiiRLArguments] = {}
    for group, entry in sorted(entries.items()):
        keys = {name: value for name, value in entry.items() if name != SHARES}
        if group in shared:
            _refuse_own_weights(keys, group=group, owner=shared[group])
        own = parse(keys, place_of(group))
        for part in OF_THE_RUN:
            setattr(own, part, getattr(config, part))
        own.agents = {}
        own.trainer = dataclasses.replace(config.trainer)  # videos are switched off for each group
        found[group] = own
    for group, owner in shared.items():
        found[group].critic = found[owner].critic
        _take_weights(found[group].actor_rollout_ref, found[owner].actor_rollout_ref)
    return found


def place_of(group: int) -> str:
    """Dotted place of an agent group's keys."""
    return f"agents.{group}"


def config_of_group(config: SiiRLArguments, group: int) -> SiiRLArguments:
    """Configuration of an agent group; the run's if it has no `agents`."""
    return config.agent_configs.get(group, config)


def group_configs(config: SiiRLArguments) -> dict[int, SiiRLArguments]:
    """The configurations of all agent groups; the run's own, as group 0, if it has no `agents`."""
    return dict(config.agent_configs) or {0: config}


def sends_weights(config: SiiRLArguments) -> bool:
    """Whether training ranks send weights to separate rollout ranks out of the trained module,
    which has the newest version of one policy. Several policies start to act together, and a
    schedule may need older versions: these are stored.

    Args:
        config: The run's configuration; that of an agent group has no `agents`.
    """
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    newest = trainer.max_staleness == 0 or sizes.streams(trainer, config.dag, rollout)
    return sizes.separate(config.dag) and newest and len(config.agents) <= 1


def owners(agents: Mapping[Any, Any]) -> dict[int, int]:
    """Maps each group of `agents` that shares weights to the group that owns them."""
    return _shares(entries_of(agents))


def rows_per_episode(spec: "EnvSpec") -> int:
    """Rows of an episode for an agent group: one if agents have roles, else one per agent."""
    return 1 if spec.agent_names else spec.num_agents


def rows_of_step(config: SiiRLArguments, *, group: int, playing: SiiRLArguments) -> int:
    """Largest number of rows that an agent group trains on in a step: per episode, one for each
    role that it plays, or one for all agents without roles.

    Args:
        config: Configuration of the agent group.
        group: Number of the agent group.
        playing: Configuration of the group whose episodes they are.
    """
    played_by = config.env.played_by
    roles = played_by.count(group) if played_by else 1
    samples = sizes.samples_per_step(playing.data, config.actor_rollout_ref.rollout)
    return samples * playing.actor_rollout_ref.rollout.n * roles


def keys_named_by(entry: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Dotted keys of an entry; a chosen group (`env: math`) counts as itself."""
    for name, value in entry.items():
        here = f"{place}.{name}" if place else str(name)
        if isinstance(value, Mapping) and value:
            yield from keys_named_by(value, here)
        else:
            yield here


def check_groups(entries: Collection[int], used: Iterable[int]) -> None:
    """Refuse groups without an entry in `entries`, and entries that no node uses.

    Raises:
        UnknownNameError: With the groups that are known.
    """
    groups = sorted(set(used))
    for group in sorted(set(groups) ^ set(entries)):
        in_graph = group in groups
        raise UnknownNameError.of(
            kind="agent_group of a node, without an entry in agents,"
            if in_graph
            else "agent group in agents, which no node of the graph has as its agent_group,",
            name=str(group),
            known=[str(number) for number in (sorted(entries) if in_graph else groups)],
        )


def entries_of(agents: Mapping[Any, Any]) -> dict[int, Mapping[str, Any]]:
    """Entries by number; those of one number (`agents.1.env=math` and a file's) are merged."""
    found: dict[int, Mapping[str, Any]] = {}
    for name, entry in agents.items():
        group = _number(name)
        found[group] = _over(found.get(group, {}), _checked(entry, place_of(group)))
    return found


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        name: _over(lower[name], value)
        for name, value in upper.items()
        if isinstance(value, Mapping) and isinstance(lower.get(name), Mapping)
    }
    return {**lower, **upper, **both}


def _number(name: Any) -> int:
    text = str(name)
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise ConfigError(
            f"agents.{text[:20]}: agent groups are numbered from 0, like the agent_group of their "
            "nodes."
        )
    return int(text)


def _checked(entry: Any, place: str) -> Mapping[str, Any]:
    if entry is None:
        return {}
    if not isinstance(entry, Mapping):
        raise ConfigError(
            f"{place}={entry} must be a mapping of keys, for example "
            f"{place}={{actor_rollout_ref: {{actor: {{optim: {{lr: 1e-4}}}}}}}}."
        )
    for name in entry:
        if str(name).split(".")[0] in OF_THE_RUN:
            raise ConfigError(
                f"{place}.{name} belongs to the whole run, which all agent groups share: set "
                f"{name} itself."
            )
    return {str(name): value for name, value in entry.items()}


def _shares(entries: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """For each group with `shares`, the group whose weights it takes."""
    shared = {group: entry[SHARES] for group, entry in entries.items() if SHARES in entry}
    for group, owner in shared.items():
        place = f"{place_of(group)}.{SHARES}={owner}"
        if isinstance(owner, bool) or not isinstance(owner, int):
            raise ConfigError(
                f"{place_of(group)}.{SHARES}={owner!r} is not the number of an agent group: give "
                f"one without quotes, for example {SHARES}: {min(entries)}."
            )
        if owner not in entries:
            raise UnknownNameError.of(
                kind=f"agent group in {place_of(group)}.{SHARES}",
                name=str(owner),
                known=[str(number) for number in sorted(entries) if number != group],
            )
        if owner == group:
            raise ConfigError(f"{place}: a group cannot share with itself; leave shares out.")
        if owner in shared:
            raise ConfigError(
                f"{place}, but group {owner} itself shares the weights of group {shared[owner]}: "
                "name a group with its own weights."
            )
    return dict(shared)


def _refuse_own_weights(keys: Mapping[str, Any], *, group: int, owner: int) -> None:
    for name in keys_named_by(keys):
        if _is_of_the_weights(name):
            raise ConfigError(
                f"{place_of(group)}.{name} is a setting of the weights, which belong to group "
                f"{owner} ({place_of(group)}.{SHARES}={owner}): set it there, or leave "
                "shares out."
            )


def _take_weights(mine: ActorRolloutRefArguments, theirs: ActorRolloutRefArguments) -> None:
    """Give a group its owner's settings of the weights."""
    mine.model, mine.ref = theirs.model, theirs.ref
    for name in OF_THE_TRAINING:
        setattr(mine.actor, name, getattr(theirs.actor, name))
    for name in OF_THE_ENGINE:
        setattr(mine.rollout, name, getattr(theirs.rollout, name))


def _is_of_the_weights(name: str) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in OF_THE_WEIGHTS)
