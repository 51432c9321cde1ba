"""Tools of a real MCP server process over its standard streams, also one that dies,
hangs, answers nonsense or fills its standard error.
"""

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from envs.tools.error_stream import KEPT_BYTES, ErrorStream
from envs.tools.mcp_server import MCPTools
from envs.tools.toolset import ToolError, ToolsMissing


def with_tools(play, server, **settings):
    """Run `play(tools)`, and close the tools."""

    async def run():
        tools = MCPTools(**server, **{"deadline_s": 60.0, "start_deadline_s": 250.0} | settings)
        try:
            return await play(tools)
        finally:
            await tools.close()

    return asyncio.run(run())


async def told(tools, name, **arguments):
    """Result text as the model reads it."""
    try:
        return await tools.call(name, arguments)
    except ToolError as error:
        return f"Error: {error}"


def test_tools_are_described_and_called_and_their_errors_reported(notes_server):
    async def play(tools):
        first = (await tools.descriptions())[0]
        answers = [await told(tools, "remember", note="a"), await told(tools, "remember", note="b")]
        return (
            first,
            answers,
            await told(tools, "remember"),
            await told(tools, "fail", reason="x"),
            await told(tools, "no_such"),
        )

    first, answers, missing, failed, unknown = with_tools(play, notes_server)
    assert (first.name, first.description) == (
        "remember",
        "Keep a note, and tell how many there are.",
    )
    assert first.parameters["required"] == ["note"]
    assert answers == ["1 notes", "2 notes"]
    assert missing.startswith("Error: ") and "Field required" in missing
    assert failed == "Error: Error executing tool fail"
    assert unknown == "Error: Unknown tool: no_such"


@pytest.mark.parametrize(
    "server", [{"command": ["python", "a.py"]}, {"command": "python", "args": "a.py"}]
)
def test_a_command_of_another_form_is_refused(server):
    with pytest.raises(ValueError, match=r"must be a program and args=.* a list of words"):
        MCPTools(**server)


@pytest.mark.parametrize("way", ["die", "babble"])
def test_server_that_dies_during_a_call_is_reported_and_restarts(notes_server, way):
    async def play(tools):
        return [
            await told(tools, "remember", note="a"),
            await told(tools, way),
            await told(tools, "remember", note="b"),
        ]

    assert with_tools(play, notes_server) == [
        "1 notes",
        "Error: its server died; it restarts with the next call",
        "1 notes",
    ]


def test_server_that_hangs_is_cut_off(notes_server):
    async def play(tools):
        await tools.descriptions()
        return await told(tools, "hang")

    answer = with_tools(play, notes_server, deadline_s=0.5)
    assert (
        answer
        == "Error: no answer within 0.5 s; its server was stopped, and it restarts with the next call"
    )


@pytest.mark.parametrize(
    ("fresh", "answers"), [(True, ["1 notes", "1 notes"]), (False, ["1 notes", "2 notes"])]
)
def test_episodes_share_nothing_unless_asked_to(notes_server, fresh, answers):
    async def play(tools):
        found = []
        for _ in range(2):
            await tools.start_episode()
            found.append(await told(tools, "remember", note="a"))
        return found

    assert with_tools(play, notes_server, fresh=fresh) == answers


def complaint(command, **settings):
    """The error of a server that does not start."""

    async def play(tools):
        with pytest.raises(ToolsMissing) as caught:
            await tools.call("any", {})
        return str(caught.value)

    return with_tools(play, {"command": command[0], "args": command[1:]}, **settings)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["no-such-command"],
            "standard error:\n[Errno 2] No such file or directory: 'no-such-command'",
        ),
        (
            ["false"],
            "'false' did not start: MCPError: Connection closed. It wrote nothing to its standard "
            "error.",
        ),
        (
            [sys.executable, "-S", "-c", "import no_such_module"],
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
    ],
)
def test_server_that_does_not_start_costs_an_episode_and_says_why(command, words):
    assert words in complaint(command)


def test_server_that_is_silent_is_waited_for_until_its_deadline():
    program = (
        "import sys, time; print('loading a large index', file=sys.stderr, flush=True); "
        "time.sleep(100)"
    )
    told = complaint([sys.executable, "-S", "-c", program], start_deadline_s=5.0)
    assert "did not start: TimeoutError: it did not answer within 5 s. " in told
    assert told.endswith("The end of its standard error:\nloading a large index")


def test_server_that_dies_while_listing_tools_is_reported_with_its_standard_error(
    plain_server, tmp_path
):
    path = tmp_path / "short_lived.py"
    source = Path(plain_server["args"][-1]).read_text()
    path.write_text(
        source.replace(
            'if method == "tools/list":',
            'if method == "tools/list":\n        raise LookupError("the list is gone")',
        )
    )

    async def play(tools):
        with pytest.raises(ToolsMissing) as caught:
            await tools.descriptions()
        return str(caught.value)

    told = with_tools(play, {"command": sys.executable, "args": ["-S", str(path)]})
    assert (
        "short_lived.py' did not list its tools: MCPError: Connection closed. The end of its "
        "standard error:" in told
    )
    assert told.endswith("LookupError: the list is gone")


def test_server_with_megabytes_of_standard_error_continues(plain_server):
    async def play(tools):
        return [await told(tools, "flood") for _ in range(2)]

    assert with_tools(play, plain_server) == ["hello", "hello"]


def test_ten_mebibytes_are_a_result(plain_server):
    text = with_tools(lambda tools: tools.call("long", {}), plain_server, deadline_s=900.0)
    assert len(text) == 10 << 20


def test_the_end_of_a_long_standard_error_is_reported():
    program = "import sys; sys.stderr.write('x' * 8_000_000); raise LookupError('in the end')"
    told = complaint([sys.executable, "-S", "-c", program])
    assert told.endswith("LookupError: in the end")
    # a sign of the cut, and no line break
    assert len(told.partition("The end of its standard error:\n")[2]) == 1 + KEPT_BYTES - 1


@pytest.mark.parametrize("tool", ["detach", "stay"])
def test_process_that_left_its_session_ends_with_its_server(plain_server, tool):
    async def play(tools):
        return int(await tools.call(tool, {}))

    assert not is_alive(with_tools(play, plain_server))


def test_process_that_left_its_session_ends_with_the_process_that_hosts_the_server(plain_server):
    """The killed host cannot clean up; the supervisor notices its end a moment later."""
    program = (
        "import asyncio, os, signal, sys\nfrom envs.tools.mcp_server import MCPTools\n"
        f"tools = MCPTools(**{plain_server!r}, deadline_s=600.0, start_deadline_s=600.0)\n"
        "async def play():\n    print(await tools.call('stay', {}), flush=True)\n    "
        "os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(play())"
    )
    host = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert host.returncode == -signal.SIGKILL
    while is_alive(int(host.stdout)):
        time.sleep(0.05)


def is_alive(pid):
    """Whether there is a process with this number; a zombie has ended."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_lines_that_are_not_mcp_cost_one_warning_per_server(plain_server, tmp_path, caplog):
    # a server that no other test has warned of
    path = shutil.copy(plain_server["args"][-1], tmp_path / "chatty.py")

    async def play(tools):
        return [await told(tools, "chatter") for _ in range(2)]

    for _ in range(2):
        assert with_tools(play, {"command": sys.executable, "args": ["-S", str(path)]}) == [
            "hello",
            "hello",
        ]
    (warning,) = caplog.records
    assert warning.levelname == "WARNING" and warning.exc_info is None
    assert (
        "chatty.py' writes lines to its standard output that are not MCP, first: 'loading'."
        in warning.getMessage()
    )


def test_notification_that_is_not_mcp_is_one_of_these_lines(plain_server, tmp_path, caplog):
    source = Path(plain_server["args"][-1]).read_text()
    notification = '{"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}'
    (tmp_path / "odd.py").write_text(
        source.replace("CHATTER = b'loading", f"CHATTER = b'{notification}")
    )

    async def play(tools):
        return await told(tools, "chatter")

    assert (
        with_tools(play, {"command": sys.executable, "args": ["-S", str(tmp_path / "odd.py")]})
        == "hello"
    )
    assert len(caplog.records) == 1 and caplog.records[0].exc_info is None


def test_server_that_writes_other_lines_and_dies_is_reported_with_their_number(tmp_path):
    told = complaint(
        [sys.executable, "-S", "-c", "print('one'); print('two'); raise SystemExit('no licence')"]
    )
    assert "It wrote 2 lines to its standard output that are not MCP." in told
    assert told.endswith("The end of its standard error:\nno licence")


def test_server_whose_start_is_cancelled_is_ended(tmp_path):
    program = f"import os, time; open('{tmp_path}/' + str(os.getpid()), 'w'); time.sleep(600)"

    async def play(tools):
        starting = asyncio.create_task(tools.descriptions())
        while not (found := list(tmp_path.iterdir())):
            await asyncio.sleep(0.05)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await tools.close()
        return Path("/proc", found[0].name).exists()

    assert not with_tools(play, {"command": sys.executable, "args": ["-S", "-c", program]})


def test_of_an_error_stream_the_end_is_kept_also_after_it_was_closed():
    def kept(*parts):
        stream = ErrorStream()
        found = [stream.tail()]
        for part in parts:
            stream.write_end.write(part)
            stream.write_end.flush()
            found.append(stream.tail())
        stream.close()
        stream.close()
        return [*found, stream.tail()]

    assert kept("a\n", "b\n") == ["", "a", "a\nb", "a\nb"]
    assert kept("x" * 1999, "yz") == [
        "",
        "x" * 1999,
        "…" + "x" * 1998 + "yz",
        "…" + "x" * 1998 + "yz",
    ]


def test_a_process_never_waits_for_its_standard_error_to_be_read():
    program = "import sys; sys.stderr.write('x' * 8_000_000 + 'the end')"
    streams = [ErrorStream() for _ in range(3)]
    for stream in streams:
        # no event loop anywhere
        subprocess.run([sys.executable, "-S", "-c", program], stderr=stream.write_end, check=True)
        assert stream.tail() == "…" + "x" * (KEPT_BYTES - len("the end")) + "the end"
    assert len(reading_threads()) == 1
    for stream in streams:
        stream.close()
    for thread in reading_threads():
        thread.join()
    assert reading_threads() == []


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name == "standard errors of tools"]


def test_servers_that_do_not_start_leave_no_descriptor_open():
    async def opened():
        tools = MCPTools(command="no-such-command")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(ToolsMissing):
                await tools.call("any", {})
        await tools.close()
        for thread in reading_threads():
            await asyncio.to_thread(thread.join, 60)
        return len(os.listdir("/proc/self/fd")) - before

    assert asyncio.run(opened()) == 0


def test_invalid_deadline_is_refused():
    with pytest.raises(ValueError, match=r"deadline_s of 'x' must be at least 0\.001 s"):
        MCPTools(command="x", deadline_s=0)


def test_a_machine_without_descriptors_left_fails_the_episode():
    bounds = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def play(tools):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, bounds[1]))
        try:
            await tools.descriptions()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, bounds)

    with pytest.raises(ToolsMissing, match=r"'any' did not start: OSError.*Too many open files"):
        with_tools(play, {"command": "any"})
