"""The groups under configs/, chosen by Hydra's compose API; only this file and `parser`
import Hydra and OmegaConf.

`@hydra.main` is not used, on purpose: it writes to the working folder and hides errors behind its
own messages.
"""

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from envs.names import listed
from siirl.errors import ConfigError, MissingAssetError, UnknownNameError
from siirl.files.paths import config_dir, usable_path, why_no_file
from siirl.files.yaml_files import UNREADABLE, describe_yaml_error, read_plain
from siirl.params.aliases import BOUNDS, CLIP_RATIO, LOSS, Assignment
from siirl.params.build import as_text
from siirl.params.config_groups import OPTIONAL_GROUPS, PRIMARY, options
from siirl.params.key_names import MODEL_OPTIONS, MODEL_POLICY
from siirl.params.model_args import ActorArguments
from siirl.params.registered_names import LOSSES_WITH_OWN_BOUNDS
from siirl.params.user_settings import value_at

OWN_GRAPHS = ("dag.workflow_file", "dag.custom_pipeline_fn")
BY_ENV = ("model", "rollout", "trainer")  # groups that an option of env chooses
LONGEST_DERIVED_NAME = 60  # characters, of at most four bytes each: a folder has 255


def check_choice(group: str, option: Any, *, source: str) -> None:
    """Refuse an option that a group does not have."""
    known = options()[group]
    if option is None and group in OPTIONAL_GROUPS:
        return
    if option in known:
        return
    if option is None:
        raise ConfigError(
            f"{group} ({source}) is empty: choose an option ({listed('', known)}), write keys "
            "below it, or remove it."
        )
    if (
        group == "pipeline"
        and isinstance(option, str)
        and (option.endswith((".yaml", ".yml")) or ":" in option)
    ):
        raise UnknownNameError(
            f"pipeline={option} ({source}) is not a shipped pipeline ({', '.join(known)}). For "
            "your own graph set dag.workflow_file=FILE.yaml or "
            "dag.custom_pipeline_fn=module:function."
        )
    raise UnknownNameError.of(kind=f"{group} ({source})", name=str(option), known=known)


def compose_groups(choices: Mapping[str, str | None]) -> DictConfig:
    """train.yaml with these options of its groups; None leaves a group out."""
    return _compose(
        PRIMARY,
        tuple(
            f"~{group}" if option is None else f"{group}={option}"
            for group, option in choices.items()
        ),
    )


def load_option(group: str, option: str, *, without: Collection[str] = ()) -> DictConfig:
    """One option alone, at its place in the tree; an environment's has the options of `BY_ENV`,
    `without` those of these groups.
    """
    left_out = tuple(f"~{nested}" for nested in BY_ENV if group == "env" and nested in without)
    return _compose(f"{group}/{option}", left_out)


@functools.cache
def shipped_values() -> Mapping[str, Sequence[Any]]:
    """For each key, the values that the options of a group give it, as written: `${other.key}` is
    not resolved.
    """
    values: dict[str, list[Any]] = {}
    for file in sorted(config_dir().glob("*/*.yaml")):
        header = re.match(r"# @package (\S+)", file.read_text())
        package = header.group(1) if header else file.parent.name
        content = {key: value for key, value in read_plain(file).items() if key != "defaults"}
        for place, value in _leaves("" if package == "_global_" else package, content):
            values.setdefault(place, []).append(tuple(value) if isinstance(value, list) else value)
    return values


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield place, value
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(f"{place}.{name}" if place else name, part)


@functools.cache
def _compose(name: str, overrides: tuple[str, ...]) -> DictConfig:
    """Callers merge the result, which copies it, so the cached tree stays unchanged."""
    try:
        with initialize_config_dir(
            version_base="1.3", config_dir=str(config_dir()), job_name="siirl"
        ):
            composed = compose(config_name=name, overrides=list(overrides))
    except (ConfigCompositionException, HydraException) as error:
        raise ConfigError(f"configs/{name}.yaml cannot be composed: {error}") from error
    OmegaConf.set_struct(composed, False)
    return composed


def load_file(path: Path) -> DictConfig:
    """A YAML file of keys.

    Raises:
        MissingAssetError: The file does not exist.
        ConfigError: It cannot be read, or its content is not a mapping of keys.
    """
    if not usable_path(str(path), key="--config").is_file():
        raise MissingAssetError(
            f"--config {path}: {why_no_file(path)}, for example a run's config.yaml."
        )
    try:
        values = read_plain(path)
        loaded = OmegaConf.create(values if isinstance(values, dict) else {})
    except OmegaConfBaseException as error:
        fault = str(error).partition("\n")[0]
        raise ConfigError(
            f"--config {path} cannot be read: {fault} (key {error.full_key}). Write texts, numbers "
            "and lists, and close every ${."
        ) from error
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from error
    except UNREADABLE as error:
        raise ConfigError(
            f"--config {path} cannot be read: {describe_yaml_error(error)}."
        ) from error
    if not isinstance(values, dict | None):  # a file without content holds None
        raise ConfigError(f"--config {path} must hold keys (trainer: ...), not a list or a value.")
    return loaded


def chooses_group(assignment: Assignment, groups: Mapping[str, Any]) -> bool:
    """Whether the assignment selects an option of a group."""
    return assignment.key in groups and not isinstance(assignment.value, Mapping)


def choices_of(chosen: Iterable[Assignment]) -> dict[str, str | None]:
    """Option of each chosen group; the command line wins over the file."""
    choices: dict[str, Assignment] = {}
    for assignment in chosen:
        check_choice(assignment.key, assignment.value, source=assignment.source)
        earlier = choices.get(assignment.key)
        if (
            earlier is not None
            and earlier.source == assignment.source
            and earlier.value != assignment.value
        ):
            raise ConfigError(
                f"{assignment.key} is chosen twice, {earlier.value} and {assignment.value} "
                f"({assignment.source}): choose one."
            )
        choices[assignment.key] = assignment
    return {group: assignment.value for group, assignment in choices.items()}


def named_graph(assignments: Iterable[Assignment]) -> str | None:
    """The setting that names a user's graph; None if none does."""
    named = {
        assignment.key: assignment.value
        for assignment in assignments
        if assignment.key in OWN_GRAPHS
    }
    return next((str(value) for value in named.values() if value), None)


def name_of_graph(own_graph: str) -> str:
    """Name of the folder for runs of this graph: the stem of a file, or the function of a
    reference; empty for a graph without a name, which is refused elsewhere.
    """
    name = (
        Path(own_graph).stem
        if own_graph.endswith((".yaml", ".yml"))
        else re.split(r"[.:/]", own_graph)[-1]
    )
    return re.sub(r"[^\w-]", "_", name)[:LONGEST_DERIVED_NAME]


def keep_chosen_policy(tree: DictConfig, chosen: Iterable[Assignment]) -> None:
    """Let a model that the user chose keep its policy, with its options, beside a preset of
    `trainer` that has another one.
    """
    for choice in chosen:
        if choice.key == "model" and choice.value is not None:
            own = load_option(choice.key, choice.value)
            if OmegaConf.select(own, MODEL_POLICY) != OmegaConf.select(tree, MODEL_POLICY):
                for key in (MODEL_POLICY, MODEL_OPTIONS):
                    OmegaConf.update(tree, key, OmegaConf.select(own, key), merge=False)


def choose_again(
    tree: DictConfig, chosen: Iterable[Assignment], *, over: Sequence[Assignment], groups: Any
) -> list[Assignment]:
    """Let groups `chosen` on the command line override the file's keys.

    Keys that both set get their value back from the groups; mappings, such as `env.kwargs`, are
    merged. All others stay.

    Args:
        tree: The configuration with the file's keys.
        chosen: The choices.
        over: The file's keys.
        groups: Nested values from all groups, without the file.

    Returns:
        The file's keys with another value.
    """
    options_by_group = {choice.key: choice.value for choice in chosen if choice.value is not None}
    set_again: set[str] = set()
    for group, option in options_by_group.items():
        own = load_option(group, option, without=options_by_group)
        set_again |= {place for place, _ in _leaves("", OmegaConf.to_container(own))}
    of_file = {leaf.key: leaf.value for leaf in over}
    again = of_file.keys() & set_again
    if CLIP_RATIO in again:  # the file's has cleared the groups' bounds
        again |= {*BOUNDS} - of_file.keys()
    if OmegaConf.select(tree, LOSS) in LOSSES_WITH_OWN_BOUNDS:
        again -= {*BOUNDS}
    for key in again:
        value = value_at(groups, key)
        if isinstance(value, Mapping):
            if not isinstance(of_file[key], Mapping):
                continue  # it is refused later
            value = {**of_file[key], **value}
        OmegaConf.update(tree, key, value, merge=False)
    alone = _clip_ratio_alone(over)
    written = OmegaConf.to_container(tree, resolve=False)
    if alone is not None and alone == value_at(written, CLIP_RATIO):  # no group has its own
        _clear_the_groups_bound(tree)
    now = OmegaConf.to_container(tree, resolve=False)
    return [leaf for leaf in over if leaf.key in again and value_at(now, leaf.key) != leaf.value]


def replaced_by_groups(
    replaced: Sequence[Assignment], chosen: Iterable[Assignment], *, tree: Any
) -> str:
    """Notice of the file's keys that the command line's groups replace.

    Args:
        replaced: The keys with the file's values.
        chosen: The choices of the command line.
        tree: Nested values that count.
    """
    shown = [
        f"{leaf.key} ({as_text(leaf.value)} -> {as_text(value_at(tree, leaf.key))})"
        for leaf in replaced
    ]
    groups = " ".join(f"{choice.key}={choice.value}" for choice in chosen)
    return (
        f"{groups} on the command line replaces keys of {replaced[0].source}: "
        f"{', '.join(shown)}. To keep the file's, choose the groups in the file."
    )


def assign(tree: DictConfig, leaves: Sequence[Assignment]) -> None:
    """Set the values of these keys."""
    if any(leaf.key == CLIP_RATIO for leaf in leaves):
        _clear_the_groups_bound(tree)
    for leaf in leaves:
        try:
            OmegaConf.update(tree, leaf.key, leaf.value, merge=False, force_add=True)
        except (OmegaConfBaseException, TypeError) as error:
            raise ConfigError(
                f"{leaf.key}={leaf.value} ({leaf.source}) cannot be set: {error}"
            ) from error


def _clip_ratio_alone(leaves: Sequence[Assignment]) -> Any:
    """The value of `clip_ratio` among these keys; None if they also set a bound.

    A run's config.yaml has every key. A default in it, beside bounds that are null, is no choice.
    """
    values = {leaf.key: leaf.value for leaf in leaves if leaf.key in (CLIP_RATIO, *BOUNDS)}
    value = values.pop(CLIP_RATIO, None)
    is_written_out = bool(values) and value == ActorArguments.clip_ratio
    sets_a_bound = any(bound is not None for bound in values.values())
    return None if is_written_out or sets_a_bound else value


def _clear_the_groups_bound(tree: DictConfig) -> None:
    """Let `clip_ratio` set both bounds: it replaces a pipeline's single bound, but not a pair.
    Bounds given along with it are assigned afterwards.
    """
    low, high = (OmegaConf.select(tree, place) for place in BOUNDS)
    if low is None or high is None:
        for place in BOUNDS:
            OmegaConf.update(tree, place, None)
