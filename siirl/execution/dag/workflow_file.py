"""Reads a graph from a YAML file (`dag.workflow_file=`), with the same content as a pipeline file.

    nodes:
      - node_id: rollout_actor
        node_type: MODEL_INFERENCE
        node_role: ROLLOUT
        dependencies: []

A node without `func` gets the stage of its type and role. If `func` is a stage, the node has that
stage's type, role and columns, as in `Pipeline.add_node`. `pipeline_id` defaults to the file's
name, `description` to an empty text. Any other content raises a ConfigError that names the file and
the place in it; `FILE_KEYS` and `NODE_KEYS` list the keys and their types. Whether names exist and
nodes fit each other is checked when the graph is built.
"""

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import yaml

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag.node import NodeRole, NodeType
from siirl.execution.dag.pipeline import NodeOptions, Pipeline
from siirl.execution.dag.task_graph import TaskGraph
from siirl.files.yaml_files import UNREADABLE, describe_yaml_error, read_plain

_STAGES = "siirl.dag_worker.stages"

# Stage by a node's role, and by whether it only runs a forward pass; False if it runs no model.
MODEL_STAGES = {
    (NodeRole.ROLLOUT, False): f"{_STAGES}:generate",
    (NodeRole.ACTOR, True): f"{_STAGES}:compute_old_log_prob",
    (NodeRole.ACTOR, False): f"{_STAGES}:train_actor",
    (NodeRole.REFERENCE, True): f"{_STAGES}:compute_ref_log_prob",
    (
        NodeRole.REFERENCE,
        False,
    ): f"{_STAGES}:compute_ref_log_prob",  # documented workflows mark it MODEL_TRAIN
    (NodeRole.CRITIC, True): f"{_STAGES}:compute_value",
    (NodeRole.CRITIC, False): f"{_STAGES}:train_critic",
}
COMPUTE_STAGES = {
    (NodeRole.REWARD, False): f"{_STAGES}:compute_reward",
    (NodeRole.ADVANTAGE, False): f"{_STAGES}:compute_advantage",
}
LOAD_STAGES = {(NodeRole.DEFAULT, False): f"{_STAGES}:load_prompts"}
SYNC_STAGES = {
    (NodeRole.ROLLOUT, False): f"{_STAGES}:sync_weights",
    (NodeRole.DEFAULT, False): f"{_STAGES}:wait_for_all",
}
EPISODE_STAGES = {
    (NodeRole.ROLLOUT, False): f"{_STAGES}:generate",
    (NodeRole.DEFAULT, False): f"{_STAGES}:generate",
}
PUT_STAGES = {(NodeRole.DEFAULT, False): f"{_STAGES}:put_to_buffer"}
GET_STAGES = {(NodeRole.DEFAULT, False): f"{_STAGES}:get_from_buffer"}
STAGES: dict[NodeType, dict[tuple[NodeRole, bool], str]] = {
    NodeType.MODEL_INFERENCE: MODEL_STAGES,
    NodeType.ENV_INTERACT: EPISODE_STAGES,
    NodeType.MODEL_TRAIN: MODEL_STAGES,
    NodeType.COMPUTE: COMPUTE_STAGES,
    NodeType.DATA_LOAD: LOAD_STAGES,
    NodeType.BARRIER_SYNC: SYNC_STAGES,
    NodeType.PUT_TO_BUFFER: PUT_STAGES,
    NodeType.GET_FROM_BUFFER: GET_STAGES,
}
# Documented workflows run an actor forward as MODEL_INFERENCE with the role ACTOR.
FORWARD_TYPES = frozenset({NodeType.MODEL_INFERENCE})

Choice = TypeVar("Choice", bound=Enum)
_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 60


def load_workflow_file(path: str | Path) -> TaskGraph:
    """Read, build and check the graph in a YAML file.

    Raises:
        ConfigError: No such file, invalid YAML, an unknown key or value, or an invalid graph; names
            the file and the node.
    """
    path = Path(path)
    content = _read(path)
    check_values(content, types=FILE_KEYS, required=["nodes"], place=f"{path}")
    pipeline = Pipeline(content.get("pipeline_id", path.stem), content.get("description", ""))
    for position, entry in enumerate(content["nodes"]):
        _add_node(pipeline, entry, place=f"{path}, node {position + 1}")
    with _with_place(f"{path}"):
        return pipeline.build()


def default_stage(
    *, node_type: NodeType, node_role: NodeRole, only_forward_compute: bool, place: str
) -> str:
    """The stage of a node without a function.

    Raises:
        ConfigError: No stage has this type and role.
    """
    forward = only_forward_compute or (
        node_type in FORWARD_TYPES and node_role is not NodeRole.ROLLOUT
    )
    stage = STAGES.get(node_type, {}).get((node_role, forward))
    if stage is None:
        pairs = {(kind, role) for kind, stages in STAGES.items() for role, _ in stages}
        known = sorted(f"{kind.value}/{role.value}" for kind, role in pairs)
        kind = f"{node_type.value}/{node_role.value}"
        raise ConfigError(
            f"{place}: no stage belongs to {kind}. Name a function with 'func'. Known: "
            f"{', '.join(known)}."
        )
    return stage


def _read(path: Path) -> Mapping[Any, Any]:
    try:
        content = read_plain(path)
    except OSError as error:
        raise ConfigError(f"dag.workflow_file={path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {describe_yaml_error(error)}.") from error
    except UNREADABLE as error:
        raise ConfigError(f"{path} is refused: {describe_yaml_error(error)}.") from error
    if not isinstance(content, dict):
        holds = "is empty" if content is None else f"holds {shown(content)}"
        raise ConfigError(f"{path} must hold a mapping with the key 'nodes', but {holds}.")
    return content


def _add_node(pipeline: Pipeline, entry: Any, *, place: str) -> None:
    if not isinstance(entry, dict):
        raise ConfigError(
            f"{place}: a node must be a mapping with a 'node_id', but this is {shown(entry)}."
        )
    if isinstance(entry.get("node_id"), str):
        place = f"{place} ({entry['node_id']})"
    check_values(entry, types=NODE_KEYS, required=["node_id"], place=place)
    options = {key: value for key, value in entry.items() if key in NodeOptions.__annotations__}
    if "node_type" in entry:
        options["node_type"] = _choice(NodeType, entry["node_type"], place=place)
    if "node_role" in entry:
        options["node_role"] = _choice(NodeRole, entry["node_role"], place=place)
    options["aliases"] = tuple(entry.get("aliases") or ())
    options["config"] = entry.get("config") or {}
    func, other = entry.get("func"), entry.get("executable_ref")
    if func is not None and other is not None:
        raise ConfigError(
            f"{place}: 'func' and 'executable_ref' are two names of one key. Give one of them."
        )
    func = other if func is None else func
    if func is None:
        func = default_stage(
            node_type=options.get("node_type", NodeType.COMPUTE),
            node_role=options.get("node_role", NodeRole.DEFAULT),
            only_forward_compute=entry.get("only_forward_compute", False),
            place=place,
        )
    with _with_place(place):
        pipeline.add_node(entry["node_id"], func, entry.get("dependencies"), **options)


@contextmanager
def _with_place(place: str) -> Iterator[None]:
    """Name the place in errors of the graph, which does not know the file."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(f"{place}: {error}") from error


def _choice(choices: type[Choice], name: str, *, place: str) -> Choice:
    for choice in choices:
        if choice.value == name:
            return choice
    raise UnknownNameError.of(
        kind=f"{choices.__name__} in {place}",
        name=shown(name).strip("'"),
        known=[choice.value for choice in choices],
    )


@dataclass(frozen=True)
class ValueType:
    """Type and bounds of a key's value."""

    description: str
    """Follows `must be` in messages."""
    fits: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list_of_texts(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_text, value)))


TEXT = ValueType("text (quote what YAML reads as another type)", _is_text)


ANY_TEXT = ValueType(
    "text (quote what YAML reads as another type)", lambda value: isinstance(value, str)
)


FUNCTION = ValueType("text, 'module:function'", lambda value: value is None or _is_text(value))


TEXTS = ValueType("a list of texts, for example [rollout_actor]", _is_list_of_texts)


COUNT = ValueType("a whole number of at least 0", _is_count)


SWITCH = ValueType("true or false", lambda value: isinstance(value, bool))


MAPPING = ValueType("a mapping", lambda value: value is None or isinstance(value, dict))


NODES = ValueType(
    "a list with at least one node", lambda value: isinstance(value, list) and bool(value)
)


FILE_KEYS = {"pipeline_id": TEXT, "description": ANY_TEXT, "nodes": NODES}


NODE_KEYS = {
    "node_id": TEXT,
    "func": FUNCTION,
    "executable_ref": FUNCTION,
    "dependencies": TEXTS,
    "node_type": TEXT,
    "node_role": TEXT,
    "only_forward_compute": SWITCH,
    "moves_rows": SWITCH,
    "group": TEXT,
    "agent_group": COUNT,
    "config": MAPPING,
    "filter_plugin": FUNCTION,
    "retry_limit": COUNT,
    "requires": TEXTS,
    "provides": TEXTS,
    "aliases": TEXTS,
}


def check_values(
    mapping: Mapping[Any, Any],
    *,
    types: Mapping[str, ValueType],
    required: Iterable[str],
    place: str,
) -> None:
    """Refuse an unknown key, a value of another type, and a missing key.

    Args:
        mapping: Part of the file.
        types: Known keys and the type of each.
        required: Required keys.
        place: File and node, for messages.

    Raises:
        ConfigError: Names the place, the key and the value.
    """
    for key, value in mapping.items():
        if key not in types:
            raise UnknownNameError.of(
                kind=f"key in {place}", name=shown(key).strip("'"), known=types
            )
        if not types[key].fits(value):
            raise ConfigError(
                f"{place}: {key!r} must be {types[key].description}, but is {shown(value)}."
            )
    for key in required:
        if key not in mapping:
            raise ConfigError(f"{place}: {key!r} is missing; it must be {types[key].description}.")


def shown(value: Any) -> str:
    """A short form of a value for messages; YAML aliases can make a value very large."""
    return _shortener.repr(value)
