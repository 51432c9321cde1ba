"""Text of `--help`: flags, groups with options, and keys with type, default and reason."""

import inspect
import textwrap
from collections.abc import Iterator, Mapping

from siirl.errors import UnknownNameError
from siirl.params.aliases import ALIASES, EXPLANATIONS, RENAMED_KEYS
from siirl.params.build import as_text
from siirl.params.command_help import paragraph
from siirl.params.config_groups import options, summary
from siirl.params.schema import Key, groups_of, join, keys_of, type_name
from siirl.params.training_args import SiiRLArguments
from siirl.terminal.terminal_lines import USUAL_COLUMNS, text_columns

YAML_INDENT = 2

WORDS = {
    "group=option": "select a config group option (below)",
    "key=value": "set one key (below), for example trainer.total_steps=3; the last value of a key "
    "counts, and a note names the others",
}
FLAGS = {
    "--help [NAME]": "this text, or the part about a group or a part of a key, for example "
    "--help trainer",
    "--plan": "check everything, print the plan, start nothing",
    "--cfg job": "print the resolved configuration as YAML",
    "--cfg comments": "the same, with each key explained",
    "--config FILE": "read keys from a YAML file, for example a run's config.yaml; the command "
    "line takes precedence, also each key that a group there sets (env= sets trainer= too)",
}


def help_text(*, usage: str, user_groups: Mapping[str, type], topic: str | None = None) -> str:
    """Help on flags, groups and keys, or on one topic.

    Args:
        usage: The first line, for example `python -m siirl.train [group=option ...] [key=value
            ...]`.
        user_groups: The user's groups by name.
        topic: A group, or part of a key, for example `trainer`, `optim` or `clip_ratio`.

    Raises:
        UnknownNameError: No group and no key has the topic in its name.
    """
    if topic is not None:
        return "\n".join(_about(topic, user_groups))
    sections = [
        *_introduction(usage),
        *_groups(),
        *_all_keys(user_groups),
        _old_names(),
    ]
    return "\n".join(sections)


def _introduction(usage: str) -> Iterator[str]:
    yield textwrap.fill(usage, text_columns(), subsequent_indent="  ")
    for heading, entries in (("", WORDS), ("\nFlags", FLAGS)):
        yield heading
        yield from (paragraph(name, text, indent=2, column=18) for name, text in entries.items())
    yield ""


def commented(config: str) -> str:
    """A configuration in YAML with the help of each key as a comment above it."""
    known = {key.place: key for key in keys_of(SiiRLArguments)}
    lines, places = [], [""]
    for line in config.splitlines():
        name, colon, _ = line.strip().partition(":")
        depth = (len(line) - len(line.lstrip())) // YAML_INDENT
        if colon and depth < len(places):
            places = [*places[: depth + 1], join(places[depth], name)]
            if places[-1] in known:
                lines += textwrap.wrap(
                    _sentence(known[places[-1]]),
                    USUAL_COLUMNS,
                    initial_indent=f"{' ' * YAML_INDENT * depth}# ",
                    subsequent_indent=f"{' ' * YAML_INDENT * depth}# ",
                )
        lines.append(line)
    return "\n".join(lines) + "\n"


def _about(topic: str, user_groups: Mapping[str, type]) -> Iterator[str]:
    groups, keys = options(), list(_keys(user_groups, topic))
    if topic not in groups and not keys:
        known = {*groups, *(place for place, _ in groups_of(SiiRLArguments) if place)}
        raise UnknownNameError.of(kind="topic of --help", name=topic, known=sorted(known))
    if topic in groups:
        yield from (*_group(topic), "")
    yield from keys


def _groups() -> Iterator[str]:
    yield "Groups (group=option)"
    for group in options():
        yield from _group(group)
    yield ""


def _group(group: str) -> Iterator[str]:
    yield f"  {group}="
    for name in options()[group]:
        yield paragraph(name, summary(group, name), indent=4, column=22)


def _all_keys(user_groups: Mapping[str, type]) -> Iterator[str]:
    yield "Keys (key=value); groups set many of them, and --cfg job prints the result"
    yield from _keys(user_groups)
    yield ""


def _keys(user_groups: Mapping[str, type], topic: str = "") -> Iterator[str]:
    """Keys with `topic` in their place, below the heading of their group."""
    groups = list(groups_of(SiiRLArguments))
    for name, own in user_groups.items():
        groups += groups_of(own, name)
    for place, cls in groups:
        keys = [
            key
            for key in keys_of(cls, place)
            if key.place.rpartition(".")[0] == place and topic in key.place
        ]
        if topic and not keys:
            continue
        yield "\n" + textwrap.fill(
            f"{place or '(root)'}: {_first_line(cls)}",
            text_columns(),
            initial_indent="  ",
            subsequent_indent="  ",
        )
        yield from map(_key, keys)


def _key(key: Key) -> str:
    return paragraph(key.place, _sentence(key), indent=4, column=28)


def _sentence(key: Key) -> str:
    """Type, meaning, choices and default of a key."""
    metadata = key.metadata
    parts = [f"{type_name(key.hint)}.", metadata.get("help", "")]
    if metadata.get("choices"):
        own = (
            ", a name that user_modules register, or module:name" if metadata.get("plug_in") else ""
        )
        parts.append(f"One of {', '.join(metadata['choices'])}{own}.")
    if not metadata.get("derived"):
        parts.append(
            f"Default {as_text(key.default)}"
            + (f": {metadata['why']}." if metadata.get("why") else ".")
        )
    if metadata.get("text_only"):
        parts.append("Text jobs only.")
    return " ".join(part for part in parts if part)


def _old_names() -> str:
    lines = ["Old names that are still accepted"]
    for (key, value), replacement in ALIASES.items():
        meaning = " ".join(f"{new_key}={new}" for new_key, new in replacement) or EXPLANATIONS[key]
        lines.append(paragraph(f"{key}={value}", meaning, indent=4, column=28))
    lines += [paragraph(old, new, indent=4, column=28) for old, new in RENAMED_KEYS.items()]
    return "\n".join(lines)


def _first_line(cls: type) -> str:
    text = inspect.getdoc(cls) or ""
    # dataclasses without a docstring get their signature
    return "" if text.startswith(f"{cls.__name__}(") else text.split("\n")[0]
