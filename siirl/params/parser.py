"""Parses `group=option`, `key=value` and an optional file into one `SiiRLArguments`.

Hydra and OmegaConf objects do not leave this module. Later sources override earlier ones: defaults
of the dataclasses, configs/train.yaml with its groups, the file of `--config`, groups chosen on the
command line, keys of the command line. All errors in names, types and bounds are reported together.
Left out: whether values fit each other and the machine (`siirl.preflight.config_checks`); sweeps
over several values.
"""

import functools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from siirl.errors import ConfigError, SiirlError, UnknownNameError, refuse
from siirl.files.yaml_files import describe_yaml_error
from siirl.params import compose
from siirl.params.agents import configs_of_entries
from siirl.params.aliases import (
    EMBODIED,
    TEXT,
    WORKFLOW_TYPES,
    Assignment,
    environment_arguments_once,
    translate,
)
from siirl.params.build import as_text, build
from siirl.params.command_line import remedy_for_word
from siirl.params.compose import (
    assign,
    choices_of,
    choose_again,
    chooses_group,
    keep_chosen_policy,
    name_of_graph,
    named_graph,
    replaced_by_groups,
)
from siirl.params.config_groups import options
from siirl.params.home_paths import quote_homes
from siirl.params.key_names import TRAIN_FILES
from siirl.params.policies import LANGUAGE_MODEL
from siirl.params.schema import Key, fields_of, find_key, keys_of, unknown_key
from siirl.params.training_args import SiiRLArguments
from siirl.params.unresolved import unresolved
from siirl.params.user_groups import load_user_groups
from siirl.params.user_settings import UserSettings, given_by, value_at

logger = logging.getLogger(__name__)

COMMAND_LINE = "command line"
USER_GROUPS = "user_groups"
WITHOUT_NAME = "run"
SHOWN = 40  # characters of an argument that is too long or too deep
NAMED_BY_PIPELINE = "${dag.pipeline}"  # trainer.experiment_name in configs/train.yaml
_TAKEN_VALUE = re.compile(r"[\w.]+=.*? \(configs/: \$\{([\w.]+)\}\)")
_HYDRA_WORDS = re.compile(r"^((override|optional) )*/?")  # before a group in a defaults list
NOT_KEYS = ("agent_configs",)  # fields of SiiRLArguments that the parser fills in
# Parts that a choice in an entry of `agents` replaces, because the run's settings do not fit
# another option.
OF_CHOICE = {
    "env": "env",
    "model": "actor_rollout_ref.model",
    "reward": "reward",
    "rollout": "actor_rollout_ref.rollout",
}
ROOT_NAMES = frozenset(field.name for field, _ in fields_of(SiiRLArguments))


@dataclass(frozen=True)
class ParsedConfig:
    """A configuration with notices about its sources."""

    config: SiiRLArguments
    user_groups: Mapping[str, type]
    """The user's own groups; `config` has an attribute for each."""
    notices: tuple[str, ...]
    """One sentence for each old name or form that was translated."""
    named: frozenset[str]
    """Keys that the command line names."""
    given: UserSettings
    """Groups and keys that the command line and the file name."""


def parse_config(
    overrides: Sequence[str] = (), *, config_file: str | Path | None = None
) -> SiiRLArguments:
    """The configuration of a run; old names are logged. See `parse`."""
    parsed = parse(overrides, config_file=config_file)
    for notice in parsed.notices:
        logger.warning(notice)
    return parsed.config


def parse_first(
    overrides: Sequence[str] = (),
    *,
    config_file: str | Path | None = None,
    group: int | None = None,
) -> SiiRLArguments:
    """The configuration of an agent group of a run (by default the lowest), or of a run without
    agents; the command line overrides the group's entry.

    Raises:
        ConfigError: Lists all errors in names, types and bounds.
        UnknownNameError: The run has no such group.
    """
    config = parse(overrides, config_file=config_file).config
    known = sorted(config.agent_configs)
    if group is not None and group not in known:
        raise UnknownNameError.of(
            kind="agent group of the run", name=str(group), known=list(map(str, known))
        )
    if not known:
        return config
    typed = {leaf.key: leaf.value for leaf in _read_command_line(overrides)}
    return _parse_over(
        config.agent_configs[known[0] if group is None else group], typed, COMMAND_LINE
    )


def parse(overrides: Sequence[str] = (), *, config_file: str | Path | None = None) -> ParsedConfig:
    """The configuration of a run.

    Args:
        overrides: `group=option` and `key=value`, as on the command line.
        config_file: YAML file with keys, for example the config.yaml of an earlier run; `pipeline:
            grpo` in it chooses a group.

    Raises:
        ConfigError: Lists all errors in names, types and bounds.
    """
    given = [*_read_file(config_file), *_read_command_line(overrides)]
    parsed = _parse(given, from_file=config_file is not None)
    parsed.config.agent_configs = configs_of_entries(
        parsed.config, parse=functools.partial(_parse_over, parsed.config)
    )
    return parsed


def _parse_over(config: SiiRLArguments, values: Mapping[str, Any], place: str) -> SiiRLArguments:
    """`config` with keys and groups over it, as a run's config.yaml with a command line."""
    chosen = [OF_CHOICE[name] for name, value in values.items() if name in OF_CHOICE and value]
    replaced = tuple(f"{key}." for key in chosen if not isinstance(values.get(key), Mapping))
    tree = {name: value for name, value in to_tree(config).items() if name != "agents"}
    known = known_keys({})
    written: list[Assignment] = []
    for name, value in tree.items():
        leaves = _leaves(Assignment(name, value, "the run"), known)
        written += [leaf for leaf in leaves if not leaf.key.startswith(replaced)]
    typed = [Assignment(name, value, place) for name, value in values.items()]
    return _parse([*written, *typed], from_file=True, typed_at=place).config


def _parse(
    assigned: Sequence[Assignment], *, from_file: bool, typed_at: str = COMMAND_LINE
) -> ParsedConfig:
    """The configuration that results from these assignments; those of `typed_at` win."""
    shipped = known_keys({})
    assignments, notices = translate(
        leaf for assignment in assigned for leaf in _leaves(assignment, shipped)
    )
    notices += _choose_environment_of_files(assignments)
    groups = options()
    chosen = [assignment for assignment in assignments if chooses_group(assignment, groups)]
    tree = _defaults(choices_of(chosen), own_graph=named_graph(assignments))
    keep_chosen_policy(tree, chosen)

    keys = [assignment for assignment in assignments if not chooses_group(assignment, groups)]
    user_groups = _add_user_groups(tree, keys)
    known = known_keys(user_groups)
    keys = [leaf for assignment in keys for leaf in _leaves(assignment, known)]
    refuse([_unknown(leaf, known) for leaf in keys if find_key(leaf.key, known) is None])
    of_groups = OmegaConf.to_container(tree, resolve=False)
    given = given_by(chosen, keys, defaults=of_groups)

    typed = [leaf for leaf in keys if leaf.source == typed_at]
    written, said = environment_arguments_once([leaf for leaf in keys if leaf.source != typed_at])
    notices += said
    sources = {leaf.key: leaf.source for leaf in keys}
    try:
        assign(tree, written)
        if from_file:
            again = [choice for choice in chosen if choice.source == typed_at]
            typed_keys = {leaf.key for leaf in typed}
            replaced = choose_again(tree, again, over=written, groups=of_groups)
            if replaced := [leaf for leaf in replaced if leaf.key not in typed_keys]:
                values = OmegaConf.to_container(tree)
                notices.append(replaced_by_groups(replaced, again, tree=values))
        assign(tree, typed)
        config = _to_arguments(tree, user_groups, sources)
    except OmegaConfBaseException as error:
        values = OmegaConf.to_container(tree)
        raise unresolved(
            error.full_key or "", str(error), written=values, sources=sources
        ) from error
    named = frozenset(leaf.key for leaf in typed)
    return ParsedConfig(config, user_groups, tuple(notices), named, given)


def known_keys(user_groups: Mapping[str, type]) -> dict[str, Key]:
    """All keys by place."""
    keys = list(keys_of(SiiRLArguments))
    for name, cls in user_groups.items():
        keys += keys_of(cls, name)
    return {key.place: key for key in keys}


def to_tree(config: SiiRLArguments) -> dict[str, Any]:
    """A configuration as plain values without derived keys; `parse` reads it back unchanged."""
    tree = _plain(config)
    for name in config.user_groups:
        tree[name] = asdict(getattr(config, name))
    for key in keys_of(SiiRLArguments):
        if key.metadata["derived"]:
            *groups, leaf = key.place.split(".")
            holder = tree
            for group in groups:
                holder = holder[group]
            del holder[leaf]
    return tree


def _plain(config: SiiRLArguments) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name not in NOT_KEYS}


def to_yaml(config: SiiRLArguments) -> str:
    """The resolved configuration as text; `--config` reads it."""
    return OmegaConf.to_yaml(OmegaConf.create(to_tree(config)))


def _read_file(path: str | Path | None) -> list[Assignment]:
    if path is None:
        return []
    values = OmegaConf.to_container(compose.load_file(Path(path)), resolve=False)
    assert isinstance(values, dict)
    return [Assignment(str(key), value, str(path)) for key, value in values.items()]


def _read_command_line(overrides: Sequence[str]) -> list[Assignment]:
    return [_read_override(text) for text in overrides]


def _read_override(text: str) -> Assignment:
    try:
        override = _override(quote_homes(text))
    except HydraException as error:
        remedy = remedy_for_word(text) or (
            "Write no blanks around '=', close every bracket, and quote values with blanks, "
            "brackets or commas for the shell: 'env.tasks=[push,reach]'. Text with other special "
            "characters needs a second pair of quotes: \"trainer.output_dir='runs (new)'\"."
        )
        raise ConfigError(
            f"{text!r} (command line) is neither key=value nor group=option. {remedy}"
        ) from error
    except (ValueError, RecursionError) as error:  # Python's limits on digits and on nesting
        raise ConfigError(
            f"{text[:SHOWN]!r}… (command line) cannot be read: {describe_yaml_error(error)}."
        ) from error
    if override.is_delete():
        raise ConfigError(
            f"{text!r} (command line): a key cannot be deleted; give it a value, for example "
            f"{override.key_or_group}=null."
        )
    if override.is_sweep_override():
        key = override.key_or_group
        raise ConfigError(
            f"{text!r} (command line): one run has one value. A list is {key}=[a,b]; for a sweep "
            "start several runs."
        )
    if override.package is not None:
        raise ConfigError(
            f"{text!r} (command line): groups cannot be moved with '@'; every group has a "
            "fixed place in the configuration."
        )
    return Assignment(override.key_or_group.replace("/", "."), override.value(), COMMAND_LINE)


@functools.cache  # Hydra's grammar takes 1 ms; each agent group parses the command line again
def _override(text: str) -> Override:
    override: Override = OverridesParser.create().parse_override(text)
    return override


def _leaves(assignment: Assignment, known: Mapping[str, Key]) -> Iterator[Assignment]:
    """Split a mapping into its keys, down to the leaves of the schema; unknown groups stay as they
    are.
    """
    key, value = assignment.key, assignment.value
    of_known_group = any(place.startswith(f"{key}.") for place in known)
    if not isinstance(value, Mapping) or not value or not of_known_group:
        yield assignment
        return
    for name, part in value.items():
        yield from _leaves(Assignment(f"{key}.{name}", part, assignment.source), known)


def _choose_environment_of_files(assignments: list[Assignment]) -> list[str]:
    """Choose env=math for prompt files if no environment is named; returns the notice."""
    files = next(
        (
            assignment
            for assignment in assignments
            if assignment.key == TRAIN_FILES and assignment.value
        ),
        None,
    )
    if files is None or any(assignment.key in ("env", "env.name") for assignment in assignments):
        return []
    assignments.append(Assignment("env", "math", files.source))
    return [f"{TRAIN_FILES} ({files.source}) without env= is read as env=math."]


def _defaults(choices: Mapping[str, str | None], *, own_graph: str | None) -> DictConfig:
    """Defaults of the dataclasses, overridden by those of the groups. A user's graph has no
    pipeline defaults, unless a pipeline is chosen.
    """
    without_pipeline = own_graph is not None and "pipeline" not in choices
    groups = compose.compose_groups({**choices, "pipeline": None} if without_pipeline else choices)
    tree = OmegaConf.merge(OmegaConf.create(_plain(SiiRLArguments())), groups)
    assert isinstance(tree, DictConfig)
    if own_graph is not None and _named_by_pipeline(tree):
        tree.trainer.experiment_name = name_of_graph(own_graph) or WITHOUT_NAME
    return tree


def _named_by_pipeline(tree: DictConfig) -> bool:
    written = value_at(OmegaConf.to_container(tree, resolve=False), "trainer.experiment_name")
    return bool(written == NAMED_BY_PIPELINE)


def _add_user_groups(tree: DictConfig, keys: Iterable[Assignment]) -> dict[str, type]:
    """Import the user's groups and put their defaults into the tree."""
    references: dict[str, Any] = dict(tree[USER_GROUPS])
    for assignment in keys:
        if assignment.key == USER_GROUPS and isinstance(assignment.value, Mapping):
            references.update(assignment.value)
        elif assignment.key.startswith(f"{USER_GROUPS}."):
            references[assignment.key.removeprefix(f"{USER_GROUPS}.")] = assignment.value
    user_groups = load_user_groups(references, taken=ROOT_NAMES | options().keys())
    for name, cls in user_groups.items():
        tree[name] = OmegaConf.merge(OmegaConf.create(asdict(cls())), tree.get(name, {}))
    return user_groups


def _unknown(leaf: Assignment, known: Mapping[str, Key]) -> SiirlError:
    if leaf.key == "defaults" and isinstance(leaf.value, list):
        entries = (entry for entry in leaf.value if isinstance(entry, Mapping))
        chosen = [
            f"{_HYDRA_WORDS.sub('', str(group)).partition('@')[0]}: {option}"
            for entry in entries
            for group, option in entry.items()
        ]
        return ConfigError(
            f"defaults ({leaf.source}) is a list of Hydra, which siirl does not read. Choose the "
            f"groups by keys of the file: {', '.join(chosen) or 'pipeline: grpo, env: math'}."
        )
    below = [place for place in known if place.startswith(f"{leaf.key}.")]
    if below and leaf.value is None:
        return ConfigError(
            f"{leaf.key} ({leaf.source}) is empty: write keys below it, such as {below[0]}, or "
            "remove it."
        )
    if below:
        return ConfigError(
            f"{leaf.key}={as_text(leaf.value)} ({leaf.source}): {leaf.key} holds keys, such as "
            f"{below[0]}; set one of them."
        )
    return unknown_key(leaf.key, known, source=leaf.source, groups=tuple(options()))


def _without_repeats(problems: Sequence[SiirlError]) -> list[SiirlError]:
    """The problems without those of a shipped key that takes its value from another key with one,
    as data.seed does from trainer.seed.
    """
    texts = [str(problem) for problem in problems]
    taken = [_TAKEN_VALUE.match(text) for text in texts]
    return [
        problem
        for problem, key in zip(problems, taken, strict=True)
        if key is None or not any(text.startswith(f"{key[1]}=") for text in texts)
    ]


def _to_arguments(
    tree: DictConfig, user_groups: Mapping[str, type], sources: Mapping[str, str]
) -> SiiRLArguments:
    pipeline = OmegaConf.select(tree, "dag.pipeline")
    if not (isinstance(pipeline, str) and pipeline) and _named_by_pipeline(tree):
        tree.trainer.experiment_name = WITHOUT_NAME  # the pipeline will be refused, not the name
    values = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    assert isinstance(values, dict)
    problems: list[SiirlError] = []
    unresolved = OmegaConf.to_container(tree, resolve=False)

    def source_of(place: str) -> str:
        source = sources.get(place, "configs/")
        written = value_at(unresolved, place)
        return f"{source}: {written}" if isinstance(written, str) and "${" in written else source

    own: dict[str, Any] = {
        name: build(cls, values.pop(name), problems=problems, place=name, source_of=source_of)
        for name, cls in user_groups.items()
    }
    config = build(
        SiiRLArguments,
        {str(key): value for key, value in values.items()},
        problems=problems,
        source_of=source_of,
    )
    refuse(_without_repeats(problems))
    for name, arguments in own.items():
        setattr(config, name, arguments)
    config.algorithm.workflow_type = WORKFLOW_TYPES.get(str(config.dag.pipeline), "DEFAULT")
    model = config.actor_rollout_ref.model
    model.model_type = TEXT if model.policy == LANGUAGE_MODEL else EMBODIED
    return config
