"""For any content of a workflow file, the error is one sentence with the file and the place in
it.
"""

import copy
import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from siirl.errors import ConfigError
from siirl.execution.dag import TaskGraph, load_workflow_file

# The guide's two nodes, and one with every key that a node may have.
WORKFLOW = {
    "pipeline_id": "mine",
    "description": "two nodes of the guide and one of my own",
    "nodes": [
        {
            "node_id": "rollout_actor",
            "node_type": "MODEL_INFERENCE",
            "node_role": "ROLLOUT",
            "dependencies": [],
        },
        {
            "node_id": "function_reward",
            "node_type": "COMPUTE",
            "node_role": "REWARD",
            "dependencies": ["rollout_actor"],
        },
        {
            "node_id": "share",
            "func": "workflow_filters:share",
            "dependencies": ["function_reward"],
            "node_type": "COMPUTE",
            "node_role": "DEFAULT",
            "only_forward_compute": False,
            "agent_group": 0,
            "config": {"threshold": 3, "names": ["a"]},
            "filter_plugin": "workflow_filters:everything",
            "retry_limit": 1,
            "requires": ["uid", "response_mask"],
            "provides": ["shared"],
            "aliases": ["balance"],
        },
    ],
}
FUNCTIONS = """
def everything(sample):
    return True

def share(*, batch, node):
    return batch
"""
VALUES = [
    *(
        None,
        True,
        False,
        0,
        -1,
        7,
        10**30,
        1.5,
        math.nan,
        math.inf,
        "",
        " ",
        "text",
        "12",
        "a:b",
        ":",
        ".",
        "long" * 2_000,
    ),
    *([], {}, [None], [[]], [1], ["a", 1], [{}], {"a": 1}, {1: {2: [3]}}, {"node_id": []}),
    *(b"\xff\x00", {"set"}, [["rollout_actor"]]),
]
ABSENT = (
    "dependencies",
    "func",
    "executable_ref",
    "config",
    "filter_plugin",
    "requires",
    "provides",
    "aliases",
)
"""Keys that may stand there without a value."""


@pytest.fixture(autouse=True)
def workflow_filters(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "workflow_filters.py").write_text(FUNCTIONS)
    (folder / "workflow_raises.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(folder))


def places(value, place=()):
    """Every key and every element of nested mappings and lists, as paths; the whole is ()."""
    yield place
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in items:
        yield from places(part, (*place, key))


def with_value(place, value):
    """The workflow with `value` at a place."""
    if not place:
        return value
    changed = copy.deepcopy(WORKFLOW)
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return changed


def load(folder, content):
    """The graph of a file, or the sentence with which it is refused; any other exception passes."""
    file = folder / "workflow.yaml"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content if isinstance(content, str) else yaml.dump(content))
    try:
        return load_workflow_file(file)
    except ConfigError as error:
        assert str(file) in str(error), error
        return str(error)


def may_be(place, value):
    """Whether the workflow is still valid with this value."""
    if "config" in place[:-1]:
        return True  # settings of the node itself
    key = place[-1] if place else ""
    return (value is None and key in ABSENT) or (
        value == [] and key in ("dependencies", "requires", "provides", "aliases")
    )


def test_the_workflow_itself_is_a_graph(tmp_path):
    assert load(tmp_path, WORKFLOW).get_topological_sort() == [
        "rollout_actor",
        "function_reward",
        "share",
    ]


@pytest.mark.parametrize(
    "place", list(places(WORKFLOW)), ids=lambda place: ".".join(map(str, place)) or "file"
)
def test_a_value_of_another_type_is_refused_with_file_and_key(place, tmp_path):
    original = WORKFLOW
    for key in place:
        original = original[key]
    for value in VALUES:
        loaded = load(tmp_path, with_value(place, value))
        if type(value) is type(original) or may_be(place, value):
            continue  # a graph, or a sentence of the graph's
        assert isinstance(loaded, str), (value, loaded)
        keys = [key for key in place if isinstance(key, str)]
        assert keys in ([], ["nodes"]) or keys[-1] in loaded, (value, loaded)
        numbers = [key for key in place if isinstance(key, int)]
        assert not numbers or f"node {numbers[0] + 1}" in loaded, (value, loaded)


PARTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.dates()
    | st.binary(max_size=3),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(), part, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(place=st.sampled_from(list(places(WORKFLOW))), value=PARTS)
def test_any_value_anywhere_gives_a_graph_or_a_sentence(place, value, tmp_path_factory):
    assert isinstance(
        load(tmp_path_factory.mktemp("workflow"), with_value(place, value)), TaskGraph | str
    )


NODE = "{node_id: a, node_type: MODEL_INFERENCE, node_role: ROLLOUT}"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "must hold a mapping with the key 'nodes', but is empty"),
        ("--- []\n--- []\n", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"\x00\x01", "is not YAML"),
        ("nodes: [" * 3_000, "nested too deeply"),
        ("nodes: " + "[" * 100_000, "nested too deeply"),
        (
            "nodes: !!python/object/apply:os.system [true]",
            "is not YAML: could not determine a constructor",
        ),
        ("nodes: !mine [1]", "is not YAML"),
        ("nodes: !!int soon", "is refused: "),
        ("nodes: !!bool maybe", "is refused: a value cannot be read (KeyError"),
        ("nodes: !!timestamp soon", "is refused: a value cannot be read (AttributeError"),
        ("nodes: !!timestamp 2026-99-99", "is refused: "),
        ("nodes: *nowhere", "is not YAML: found undefined alias"),
        ("? [a]\n: 1", "is not YAML"),
        ("? {a: 1}\n: 1", "is not YAML"),
        (f"nodes: [{NODE}]\nnodes: [{NODE}]", "is not YAML: the key 'nodes' is given twice"),
        ("nodes: [{node_id: a, node_id: b}]", "the key 'node_id' is given twice"),
        (f"nodes: &all [{NODE}, *all]", "with its aliases expanded it has more than"),
        (
            "nodes: &all [{node_id: a, requires: *all}]",
            "with its aliases expanded it has more than",
        ),
        (f"nodes: [{NODE}, {NODE}]", "node 2 (a): Pipeline 'workflow' already has a node 'a'"),
        (
            "nodes: [{node_id: a, func: 'json:dumps', executable_ref: 'json:dumps'}]",
            "node 1 (a): 'func' and 'executable_ref'",
        ),
        (
            "nodes: [{node_id: a, func: 'workflow_raises:step'}]",
            "cannot be imported: ZeroDivisionError: division by zero",
        ),
        ("nodes: [{node_id: a, func: 'json.nothing:step'}]", "node 'a'"),
        (
            "nodes: [{node_id: a, func: 'torch:Tensor'}]",
            "torch:Tensor of node 'a' has no signature that Python can read",
        ),
        (
            "nodes: [{node_id: a, node_type: CUSTOM, retry_limit: -1}]",
            "'retry_limit' must be a whole number of at least 0, but is -1",
        ),
        (
            "nodes: [{node_id: 7}]",
            "node 1: 'node_id' must be text (quote what YAML reads as another type), but is 7",
        ),
    ],
)
def test_a_text_that_is_not_a_workflow_is_refused(content, expected, tmp_path):
    assert expected in load(tmp_path, content)


def test_a_value_of_a_million_aliases_is_shown_shortened(tmp_path):
    lists = "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    assert len(load(tmp_path, f"nodes:\n- &a0 [1]\n{lists}")) < 500


def test_merged_keys_are_not_a_repetition(tmp_path):
    text = f"nodes:\n- &first {NODE}\n- {{<<: *first, node_id: b, dependencies: [a]}}\n"
    assert load(tmp_path, text).get_topological_sort() == ["a", "b"]


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_workflow_file(tmp_path)
