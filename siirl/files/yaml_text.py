"""Bounds the size of untrusted YAML with its aliases expanded, before it is read.

An alias represents a whole part of the text, so nine lines of nine aliases each make 9^9 values
(the "billion laughs").
"""

import math

import yaml

# The whole configuration has a few hundred, a workflow of a hundred nodes two thousand.
MOST_VALUES = 100_000


def check_expansion(text: str) -> None:
    """Refuse a text that holds more than `MOST_VALUES` values with its aliases expanded.

    Raises:
        ValueError: It holds more.
        yaml.YAMLError: It is not YAML.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = 0 if root is None else _values(root, {})
    except RecursionError as error:
        raise ValueError("its lists and mappings are nested too deeply") from error
    if values > MOST_VALUES:
        raise ValueError(f"with its aliases expanded it has more than {MOST_VALUES} values")


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """Values in `node`; infinite for one that contains itself."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = math.inf  # until it is known: a node met before that contains itself
    parts = [] if isinstance(node, yaml.ScalarNode) else node.value
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in parts for part in pair]
    known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]
