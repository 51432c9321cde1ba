"""Tool calls in a model's text: valid calls, other texts, and arbitrary input."""

import json
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.tools.calls import (
    MalformedCall,
    ToolCall,
    ToolDescription,
    announcement,
    read_calls,
    write_call,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.lists(
        st.builds(ToolCall, st.text(), st.dictionaries(st.text(), JSON, max_size=3)), max_size=3
    ),
    st.text(alphabet="ab \n{}\"'"),
)
@settings(
    derandomize=True, max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_written_calls_are_read_in_order_between_any_words(calls, words):
    assert read_calls(words + words.join(map(write_call, calls))) == calls


@pytest.mark.parametrize(
    "text", ["", "no call", "</tool_call>", '{"name": "add", "arguments": {}}', "< tool_call >{}"]
)
def test_text_without_an_opening_tag_has_no_calls(text):
    assert read_calls(text) == []


def test_call_without_arguments_has_none():
    assert read_calls('<tool_call>{"name": "now"}</tool_call>') == [ToolCall("now", {})]


def test_call_that_was_never_closed_reaches_to_the_end_or_to_the_next():
    text = '<tool_call>{"name": "a"} <tool_call>{"name": "b"}'
    assert read_calls(text) == [ToolCall("a", {}), ToolCall("b", {})]


@pytest.mark.parametrize("tag", ["<tool_call>", "</tool_call>"])
def test_a_tag_in_a_string_ends_no_call(tag):
    calls = [ToolCall("write", {"text": f"a {tag} b"}), ToolCall(tag, {})]
    assert read_calls("words".join(map(write_call, calls))) == calls


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("", "not JSON"),
        ("{broken", "not JSON"),
        ("{'name': 'add'}", "not JSON"),
        ("[]", r'it must be \{"name"'),
        ('{"arguments": {}}', r'it must be \{"name"'),
        ('{"name": 3}', r'it must be \{"name"'),
        ('{"name": "add", "arguments": [1, 2]}', "arguments of 'add' must be an object"),
        ('{"name": "add", "arguments": "1"}', "arguments of 'add' must be an object"),
        ('{"name": "add", "arguments": {"a": ' + "[" * 100_000, "nests deeper than 50"),
        ('{"name": "add", "arguments": {"a": ' + "9" * 100_000 + "}}", "not JSON"),
    ],
)
def test_malformed_call_says_what_is_wrong(block, reason):
    (call,) = read_calls(f"<tool_call>{block}</tool_call>")
    assert isinstance(call, MalformedCall)
    assert re.search(reason, call.reason)


@pytest.mark.parametrize(
    "text",
    ["<tool_call>" * 200_000, "<tool_call>" + "x" * 4_000_000, "<tool_call></tool_call>" * 100_000],
)
def test_megabytes_take_linear_time(text):
    began = time.process_time()
    read_calls(text)
    assert time.process_time() - began < 60  # a second if linear, hours if quadratic


def test_no_more_than_64_calls_are_read():
    assert len(read_calls('<tool_call>{"name": "a"}</tool_call>' * 100)) == 64


def test_announcement_has_one_schema_per_line():
    schema = {"type": "object", "properties": {"first": {"type": "integer"}}}
    lines = announcement(
        [ToolDescription("add", "Add.", schema), ToolDescription("now", "Tell the time.", {})]
    ).splitlines()
    first, second = (
        json.loads(line) for line in lines[lines.index("<tools>") + 1 : lines.index("</tools>")]
    )
    assert first == {
        "type": "function",
        "function": {"name": "add", "description": "Add.", "parameters": schema},
    }
    assert second["function"]["name"] == "now"


@pytest.mark.parametrize("key", ['"\\ud800": 1', '"a": "\\udfff"', '"a": ["x", {"b": "\\ud83d"}]'])
def test_half_of_a_surrogate_pair_is_not_a_call_because_no_server_can_receive_it(key):
    (call,) = read_calls(f'<tool_call>{{"name": "add", "arguments": {{{key}}}}}</tool_call>')
    assert isinstance(call, MalformedCall)
    assert "surrogates not allowed" in call.reason
