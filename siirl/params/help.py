"""Text of `--help`: flags, groups with options, and keys with type, default and reason."""

import inspect
import textwrap
from collections.abc import Iterator, Mapping

from siirl.params.aliases import ALIASES, EXPLANATIONS, RENAMED_KEYS
from siirl.params.build import as_text
from siirl.params.config_groups import options, summary
from siirl.params.schema import Key, groups_of, keys_of, type_name
from siirl.params.training_args import SiiRLArguments

WIDTH = 120

INTRODUCTION = """\
{usage}

  group=option   select a config group option (below)
  key=value      set one key (below), for example trainer.total_steps=3; the last value wins

Flags
  --help         this text
  --plan         check everything, print the plan, start nothing
  --cfg job      print the resolved configuration as YAML
  --config FILE  read keys from a YAML file, for example a run's config.yaml; the command line wins
"""


def help_text(*, usage: str, user_groups: Mapping[str, type]) -> str:
    """Help on flags, groups and keys.

    Args:
        usage: The first line, for example `python -m siirl.train [group=option ...] [key=value
            ...]`.
        user_groups: The user's groups by name.
    """
    sections = [INTRODUCTION.format(usage=usage), *_groups(), *_keys(user_groups), _old_names()]
    return "\n".join(sections)


def _groups() -> Iterator[str]:
    yield "Groups (group=option)"
    for group, names in options().items():
        yield f"  {group}="
        for name in names:
            yield _paragraph(name, summary(group, name), indent=4, column=22)
    yield ""


def _keys(user_groups: Mapping[str, type]) -> Iterator[str]:
    yield "Keys (key=value); groups set many of them, and --cfg job prints the result"
    for place, cls in (
        *groups_of(SiiRLArguments),
        *((place, cls) for name, own in user_groups.items() for place, cls in groups_of(own, name)),
    ):
        yield "\n" + textwrap.fill(
            f"{place or '(root)'}: {_first_line(cls)}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="  ",
        )
        yield from (
            _key(key) for key in keys_of(cls, place) if key.place.rpartition(".")[0] == place
        )
    yield ""


def _key(key: Key) -> str:
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
    return _paragraph(key.place, " ".join(part for part in parts if part), indent=4, column=52)


def _old_names() -> str:
    lines = ["Old names that are still accepted"]
    for (key, value), replacement in ALIASES.items():
        meaning = " ".join(f"{new_key}={new}" for new_key, new in replacement) or EXPLANATIONS[key]
        lines.append(_paragraph(f"{key}={value}", meaning, indent=4, column=52))
    lines += [_paragraph(old, new, indent=4, column=52) for old, new in RENAMED_KEYS.items()]
    return "\n".join(lines)


def _first_line(cls: type) -> str:
    text = inspect.getdoc(cls) or ""
    return (
        "" if text.startswith(f"{cls.__name__}(") else text.split("\n")[0]
    )  # dataclasses without a docstring get their signature


def _paragraph(name: str, text: str, *, indent: int, column: int) -> str:
    """`name` in the left column and the wrapped text in the right; below if `name` is long."""
    head = " " * indent + name
    first = head.ljust(column) if len(head) < column else head + "\n" + " " * column
    body = textwrap.wrap(text, WIDTH - column) or [""]
    return (first + ("\n" + " " * column).join(body)).rstrip()
