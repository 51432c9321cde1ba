"""Reads users' YAML files into plain values, and lists the exceptions of invalid files.

Left out: the meaning of the values (`siirl.params.compose` for keys,
`siirl.execution.dag.workflow_file` for graphs).
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from siirl.files.yaml_text import check_expansion

# PyYAML checks the text's structure, and leaves scalars to Python: `!!timestamp 2026-99-99` and a
# long integer are ValueErrors, `!!bool maybe` a KeyError, `!!timestamp soon` an AttributeError,
# `!!int ''` an IndexError, and brackets without end a RecursionError.
UNREADABLE = (
    yaml.YAMLError,
    ValueError,
    KeyError,
    AttributeError,
    IndexError,
    TypeError,
    RecursionError,
)


_WHOLE, _DIGITS = "(0|[1-9](_?[0-9])*)", "[0-9](_?[0-9])*"
_POINT, _EXPONENT = rf"({_WHOLE}?\.{_DIGITS}|{_WHOLE}\.)", rf"[eE][+-]?{_DIGITS}"
INTEGER = rf"[+-]?{_WHOLE}"
FLOAT = rf"[+-]?({_POINT}({_EXPONENT})?|{_WHOLE}{_EXPONENT})"
"""Finite numbers as Hydra reads them from the command line."""


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, of which PyYAML would keep the last one, and
    reads the numbers of the command line: YAML 1.1 has 0x10, 010 and 1:30 as integers, and dates,
    but not 1e3.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As SafeLoader, after a check that the keys of `node` differ.

        Keys of `<<: *merged` may be overwritten.
        """
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


_OWN = {
    "tag:yaml.org,2002:int": INTEGER,
    "tag:yaml.org,2002:float": rf"{FLOAT}|[+-]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
_Loader.yaml_implicit_resolvers = {
    first: [each for each in known if each[0] not in {*_OWN, "tag:yaml.org,2002:timestamp"}]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _OWN.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"({_pattern})\Z"), [*"+-.0123456789"])


def read_plain(path: Path) -> Any:
    """Mappings, lists, texts, numbers, booleans and None; objects of other classes are never made.

    Raises:
        OSError: The file cannot be read.
        UNREADABLE: It does not hold YAML, or a key twice.
    """
    text = path.read_text(encoding="utf-8")
    check_expansion(text)
    return yaml.load(text, Loader=_Loader)


def describe_yaml_error(error: BaseException) -> str:
    """Describes the error in the text: one sentence without its full stop."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem} (line {mark.line + 1}, column {mark.column + 1})"
    if isinstance(error, yaml.YAMLError | UnicodeDecodeError):
        return str(error)
    if type(error) is ValueError:
        long = "integer string conversion" in str(error)
        return "a number has more digits than Python reads, 4300" if long else str(error)
    return f"a value cannot be read ({type(error).__name__}: {error})"
