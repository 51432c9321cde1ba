"""Python functions as tools: the schema comes from the signature, and every result of a call
comes back as text or ToolError.
"""

import asyncio

import pytest

from envs.tools.functions import FunctionTools
from envs.tools.toolset import ToolError


@pytest.fixture
def tools(tool_module):
    """Make a toolset of functions of the user's module; closed at the end."""
    made = []

    def make(*names, **settings):
        references = [f"{tool_module}:{name}" for name in names]
        made.append(FunctionTools(references, num_workers=1, **{"deadline_s": 60.0} | settings))
        return made[-1]

    yield make
    for toolset in made:
        asyncio.run(toolset.close())


def call(toolset, name, **arguments):
    return asyncio.run(toolset.call(name, arguments))


def described(toolset):
    return {entry.name: entry for entry in asyncio.run(toolset.descriptions())}


def test_schema_comes_from_signature_and_docstring(tools):
    add = described(tools("add"))["add"]
    assert add.description == "Add two whole numbers."
    assert add.parameters == {
        "type": "object",
        "properties": {
            "first": {"type": "integer", "description": "One of them, told over two lines."},
            "second": {"type": "integer", "description": "The other.", "default": 0},
        },
        "required": ["first"],
        "additionalProperties": False,
    }


def test_parameters_keep_their_names_whatever_they_are(tools):
    toolset = tools("listed")
    assert set(described(toolset)["listed"].parameters["properties"]) == {
        "title",
        "schema",
        "_hidden",
    }
    assert (
        call(toolset, "listed", title="x", _hidden=2) == '{"title": "x", "schema": 1, "_hidden": 2}'
    )


def test_results_come_back_as_text(tools):
    toolset = tools("add", "shout", "weekday")
    assert call(toolset, "add", first=2, second=3) == "5"
    assert call(toolset, "add", first=2) == "2"
    assert call(toolset, "shout", text="hello", mark="?") == "HELLO?"
    assert call(toolset, "weekday", day="2026-11-21") == "Saturday"


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("add", {}, "wrong arguments: first: Field required"),
        ("add", {"first": "many"}, "wrong arguments: first: Input should be a valid integer"),
        ("add", {"first": 1, "third": 2}, "wrong arguments: third: Extra inputs are not permitted"),
        (
            "shout",
            {"text": "x", "mark": "."},
            "wrong arguments: mark: Input should be '!' or '\\?'",
        ),
        ("weekday", {"day": "someday"}, "wrong arguments: day"),
    ],
)
def test_wrong_arguments_are_reported_without_a_process(tools, name, arguments, sentence):
    toolset = tools(name)
    with pytest.raises(ToolError, match=sentence):
        call(toolset, name, **arguments)
    assert toolset._workers is None


def test_exception_and_death_are_reported_and_the_next_call_works(tools):
    toolset = tools("fail", "die", "add")
    assert call(toolset, "add", first=1) == "1"
    with pytest.raises(ToolError, match="LookupError: no bread"):
        call(toolset, "fail", reason="no bread")
    with pytest.raises(ToolError, match="it was stopped: it ended with status 1"):
        call(toolset, "die")
    assert call(toolset, "add", first=1) == "1"


def test_hang_is_cut_off_and_reported(tools):
    with pytest.raises(ToolError, match="it was stopped: no answer within 1 s"):
        call(tools("hang", deadline_s=1.0), "hang")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_such", "cannot be imported: AttributeError"),
        ("NUMBER", "is not a function: 3"),
        ("positional", "parameter first: int cannot be passed by name"),
        ("collect", r"parameter \*values: int cannot be passed by name"),
    ],
)
def test_anything_but_a_tool_is_refused(tools, name, sentence):
    with pytest.raises(ValueError, match=sentence):
        tools(name)


def test_a_function_that_is_listed_twice_is_refused(tool_module):
    with pytest.raises(ValueError, match=r"tools lists the Python function '.*:add' twice: remove"):
        FunctionTools([f"{tool_module}:add", f"{tool_module}:add"])


def test_name_without_a_module_is_refused():
    with pytest.raises(ValueError, match="named by module:function, got 'add'"):
        FunctionTools(["add"])
