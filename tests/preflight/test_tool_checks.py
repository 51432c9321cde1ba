"""MCP servers are asked for their tools before a job starts."""

import re
import socket
import sys
import time
from pathlib import Path

import pytest

from siirl.errors import ConfigError
from siirl.params.parser import parse_config
from siirl.preflight import tool_checks
from siirl.preflight.early_checks import check_early
from siirl.preflight.tool_checks import missing_programs, tool_server_problems
from tests.envs.tools.http_server import PlainHttpServer

CALCULATOR = "envs.tools.arithmetic:calculator"


def problems(tools: str) -> list[str]:
    config = parse_config(["pipeline=grpo", "env=tools", f"env.kwargs.tools={tools}"])
    return [str(error) for error in tool_server_problems(config.env, here=True)]


def test_the_tools_of_the_default_need_nothing() -> None:
    config = parse_config(["pipeline=grpo", "env=tools"])
    assert [*tool_server_problems(config.env, here=True), *missing_programs(config.env)] == []


def test_an_absent_server_is_refused_at_once_with_its_address_and_the_remedy() -> None:
    with PlainHttpServer() as server:
        url = server.url
    begin = time.monotonic()
    config = parse_config(
        ["pipeline=grpo", "env=tools", f"env.kwargs.tools=[{{mcp: {{url: '{url}'}}}}]"]
    )
    with pytest.raises(
        ConfigError, match=rf"no MCP server can be reached at {url} \(.+\): start it first, or"
    ):
        check_early(config)
    assert time.monotonic() - begin < 60.0


def test_a_server_that_lists_its_tools_is_accepted_and_left() -> None:
    with PlainHttpServer() as server:
        at = f"{{mcp: {{url: '{server.url}'}}}}"
        assert problems(f"[{at}]") == []
    assert server.sessions == server.farewells == 1


def test_two_servers_with_a_tool_of_the_same_name_are_refused_with_both_and_the_tool() -> None:
    with PlainHttpServer() as first, PlainHttpServer() as second:
        assert problems(f"[{{mcp: {{url: '{first.url}'}}}}, {{mcp: {{url: '{second.url}'}}}}]") == [
            f"Two tools are called 'greet', of the MCP server '{first.url}' and of the MCP server "
            f"'{second.url}': remove one of the two from env.kwargs.tools, or rename the tool "
            "where it is offered."
        ]


def test_a_function_and_a_server_with_a_tool_of_the_same_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests_tool_checks.py").write_text(
        "def greet(name: str) -> str:\n    return name\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with PlainHttpServer() as server:
        config = parse_config(
            [
                "pipeline=grpo",
                "env=tools",
                f"env.kwargs.tools=['tests_tool_checks:greet', {{mcp: {{url: '{server.url}'}}}}]",
            ]
        )
        with pytest.raises(
            ConfigError,
            match="Two tools are called 'greet', of the Python function "
            f"'tests_tool_checks:greet' and of the MCP server '{server.url}': remove one",
        ):
            check_early(config)


def test_a_program_runner_and_a_server_with_a_tool_of_the_same_name_are_refused() -> None:
    runner = "{program: envs.tools.sandboxed:sandboxed, isolation: none}"
    with PlainHttpServer(tools=["python"]) as server:
        (problem,) = problems(f"[{runner}, {{mcp: {{url: '{server.url}'}}}}]")
    assert problem.startswith(
        f"Two tools are called 'python', of a program runner and of the MCP server '{server.url}':"
    )


@pytest.fixture
def program(repository: Path) -> str:
    """Words of an MCP server's program that takes a folder, in which it notes its starts."""
    return f"command: '{sys.executable}', args: ['{repository}/tests/envs/tools/plain_server.py', "


def test_two_programs_with_a_tool_of_the_same_name_are_refused_before_the_start(
    program: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    tools = f"[{{mcp: {{{program}'{first}']}}}}, {{mcp: {{{program}'{second}']}}}}]"
    config = parse_config(["pipeline=grpo", "env=tools", f"env.kwargs.tools={tools}"])
    with pytest.raises(
        ConfigError,
        match=f"Two tools are called 'greet', of the MCP server '.*{first}' and of the MCP server "
        f"'.*{second}': remove one of the two from env.kwargs.tools, or rename the tool",
    ):
        check_early(config)


def test_a_program_beside_other_tools_that_does_not_start_is_refused_with_its_words(
    program: str, tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    (problem,) = problems(f"['{CALCULATOR}', {{mcp: {{{program}'{tmp_path}']}}}}]")
    assert problem.startswith("env.kwargs.tools: The MCP server ")
    assert "the disk is gone" in problem


@pytest.mark.parametrize(("beside", "here"), [("", True), (f"'{CALCULATOR}', ", False)])
def test_a_program_alone_or_for_another_machine_is_not_started(
    beside: str, here: bool, program: str, tmp_path: Path
) -> None:
    tools = f"[{beside}{{mcp: {{{program}'{tmp_path}']}}}}]"
    config = parse_config(["pipeline=grpo", "env=tools", f"env.kwargs.tools={tools}"])
    assert [*tool_server_problems(config.env, here=here)] == []
    assert not list(tmp_path.iterdir())


def test_a_function_that_is_listed_twice_is_refused() -> None:
    config = parse_config(
        ["pipeline=grpo", "env=tools", f"env.kwargs.tools=['{CALCULATOR}', '{CALCULATOR}']"]
    )
    with pytest.raises(
        ConfigError, match=r"tools lists the Python function '.*' twice: remove one"
    ):
        check_early(config)


@pytest.mark.parametrize(
    ("entry", "owner"),
    [
        ("{program: 'envs.tools.sandboxed:sandboxed'}", "a program runner"),
        ("{mcp: {command: notes, args: [--quiet]}}", "the MCP server 'notes --quiet'"),
    ],
)
def test_a_program_that_is_listed_twice_is_refused_before_it_is_started(
    entry: str, owner: str
) -> None:
    assert problems(f"[{entry}, {entry}]") == [
        f"env.kwargs.tools lists {owner} twice: remove one of the two entries."
    ]
    assert problems("[{mcp: {command: notes}}, {mcp: {command: notes, args: [--quiet]}}]") == []


def test_a_server_that_is_named_twice_is_refused() -> None:
    with PlainHttpServer() as server:
        at = f"{{mcp: {{url: '{server.url}'}}}}"
        (problem,) = problems(f"[{at}, {at}]")
    assert problem == (
        f"env.kwargs.tools lists the MCP server '{server.url}' twice: remove one of the two "
        "entries."
    )


@pytest.mark.parametrize(
    ("server", "there"),
    [
        ("command: no-such-server", False),
        ("command: sh", True),
        ("command: sh, env: {PATH: /nowhere}", False),
        ("command: /bin/no-such-server", False),
        ("command: ./run, cwd: '{folder}'", True),
        ("command: ./run, cwd: /", False),
    ],
)
def test_a_server_whose_program_is_missing_is_refused(
    server: str, there: bool, tmp_path: Path
) -> None:
    (tmp_path / "run").touch(mode=0o755)
    tools = f"[{{mcp: {{{server.replace('{folder}', str(tmp_path))}}}}}]"
    config = parse_config(["pipeline=grpo", "env=tools", f"env.kwargs.tools={tools}"])
    found = [str(error) for error in missing_programs(config.env)]
    assert ["there is no program" in each for each in found] == ([] if there else [True])


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "start_deadline_s: abc",
            "start_deadline_s of 'x' must be a number of seconds, got 'abc'.",
        ),
        ("deadline_s: true", "deadline_s of 'x' must be a number of seconds, got True."),
        ("fresh: nope", "fresh of an MCP server must be true or false, got 'nope'."),
        ("replayable: 3", "replayable of an MCP server must be true or false, got 3."),
        ("cwd: 5", "cwd of an MCP server must be a folder, got 5."),
        ("env: [a]", "env of an MCP server must be a mapping of names to texts, got ['a']."),
        ("env: {A: 5}", "A in env of an MCP server must be text; write it in quotes, got 5."),
        ("token_file: 5", "token_file of an MCP server must be a file, got 5."),
        ("args: 5", "must be a program and args=5 a list of words"),
    ],
)
def test_a_setting_of_another_type_is_refused_with_its_key_and_value(
    setting: str, sentence: str
) -> None:
    config = parse_config(
        ["pipeline=grpo", "env=tools", f"env.kwargs.tools=[{{mcp: {{command: x, {setting}}}}}]"]
    )
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        check_early(config)


def test_a_wrong_path_of_a_server_that_listens_is_refused_before_the_start() -> None:
    with PlainHttpServer() as server:
        url = server.url.replace("/mcp", "/mpc")
        config = parse_config(
            ["pipeline=grpo", "env=tools", f"env.kwargs.tools=[{{mcp: {{url: '{url}'}}}}]"]
        )
        with pytest.raises(
            ConfigError,
            match=rf"tools: The MCP server '{url}' gave no session: .*Not Found\. Check that it "
            r"runs, and its url and token_file in env\.kwargs\.tools\.$",
        ):
            check_early(config)


def test_a_server_gets_the_token_of_its_file_and_refuses_a_job_without_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with PlainHttpServer(token="secret") as server:
        with_token = f"{{mcp: {{url: '{server.url}', token_file: {tmp_path / 'token'}}}}}"
        assert problems(f"[{with_token}]") == []
        assert server.tokens == {"Bearer secret"}
        (problem,) = problems(f"[{with_token}, {{mcp: {{url: '{server.url}'}}}}]")
    assert "gave no session" in problem and "its url and token_file" in problem


def test_a_server_that_accepts_and_says_nothing_is_left_to_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_checks, "LISTED_WITHIN_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert problems(f"[{{mcp: {{url: 'http://127.0.0.1:{port}/mcp'}}}}]") == []


def test_each_absent_server_is_named_once() -> None:
    with PlainHttpServer() as server:
        pass
    at = f"{{mcp: {{url: '{server.url}'}}}}"
    other = f"{{mcp: {{url: '{server.url}', fresh: false}}}}"
    [problem] = problems(
        f"['{CALCULATOR}', {at}, {other}, {at}, {{mcp: {{command: nothing}}}}, {{program: 'a:b'}}]"
    )
    assert server.url in problem
