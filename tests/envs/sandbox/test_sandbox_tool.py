"""The sandbox as a tool of the model: real programs in the real sandbox, called in episodes."""

import asyncio

import pytest

from envs.base import EpisodeFailed
from envs.tools.calls import ToolCall, write_call
from envs.tools.named_tools import make_toolsets
from envs.tools.tool_env import ToolEnv

# As `SMALL` of trials.py, by name as in a configuration, with time for a busy machine.
LIMITS = {
    "cpu_s": 1,
    "wall_s": 100.0,
    "total_s": 100.0,
    "memory_bytes": 2**26,
    "processes": 8,
    "tmp_bytes": 2**22,
    "files": 64,
}
OPEN_SOCKET = (
    "import socket\ntry:\n    socket.socket()\nexcept OSError as error:\n    print('refused:', "
    "error)"
)
LEAVE_TRACES = """
import builtins, os
print(os.path.exists('/tmp/trace'), hasattr(builtins, 'trace'))
builtins.trace = 1
open('/tmp/trace', 'w').write('here')
"""


@pytest.fixture(scope="module")
def answers_of(small):
    """Plays an episode that calls `python` with each program in its own turn; needs isolation."""

    def play(*programs, in_one_turn=False):
        calls = [write_call(ToolCall("python", {"program": program})) for program in programs]

        async def episode():
            env = ToolEnv(
                tools=[{"program": "envs.tools.sandboxed:sandboxed", **LIMITS}],
                max_turns=len(programs) + 1,
            )
            try:
                await env.reset(seed=0)
                results = [
                    await env.step(turn) for turn in (["".join(calls)] if in_one_turn else calls)
                ]
                _, _, terminated, _, info = await env.step("#### 0")
                assert terminated and info["verdict"] in (
                    "wrong",
                    "correct",
                )  # whatever happened, the episode went on
            finally:
                await env.close()
            return [
                message["content"]
                for observation, *_ in results
                for message in observation["messages"]
            ]

        return asyncio.run(episode())

    return play


def test_model_reads_what_its_program_prints(answers_of):
    assert answers_of("print(sum(range(101)))\nprint('done')") == ["5050\ndone"]


def test_program_without_output_is_reported(answers_of):
    assert answers_of("x = 1") == ["(printed nothing)"]


def test_network_is_refused(answers_of):
    (answer,) = answers_of(OPEN_SOCKET)
    assert answer.startswith("refused: [Errno ")


def test_exception_is_reported_as_text_after_what_was_printed(answers_of):
    (answer,) = answers_of("print('before')\nprint(1 / 0)")
    assert answer.startswith("before\nTraceback (most recent call last):")
    assert answer.endswith("ZeroDivisionError: division by zero\n(exit status 1)")


def test_endless_loop_is_ended_and_reported(answers_of):
    assert answers_of("print('begun', flush=True)\nwhile True: pass") == [
        "begun\n(ended: out of processor time)"
    ]


@pytest.mark.parametrize("in_one_turn", [False, True])
def test_each_call_has_a_fresh_namespace_process_and_folder(answers_of, in_one_turn):
    assert answers_of("x = 41", "print(x + 1)", in_one_turn=in_one_turn)[1].endswith(
        "NameError: name 'x' is not defined\n(exit status 1)"
    )
    first, second = answers_of(LEAVE_TRACES, LEAVE_TRACES, in_one_turn=in_one_turn)
    assert (first, second) == ("False False", "False False")


def test_programs_run_side_by_side(small):
    """Four concurrent calls; each gets the output of its program."""

    async def run():
        (tool,) = make_toolsets(
            [{"program": "envs.tools.sandboxed:sandboxed", **LIMITS}], deadline_s=1.0
        )
        try:
            return await asyncio.gather(
                *(tool.call("python", {"program": f"print({number})"}) for number in range(4))
            )
        finally:
            await tool.close()

    assert asyncio.run(run()) == ["0", "1", "2", "3"]


def test_sandbox_that_breaks_down_fails_the_episode_and_is_not_an_answer():
    async def episode():
        env = ToolEnv(
            tools=[
                {
                    "program": "envs.tools.sandboxed:sandboxed",
                    "isolation": "remote",
                    "url": "http://127.0.0.1:9",
                }
            ]
        )
        try:
            await env.reset(seed=0)
            await env.step(write_call(ToolCall("python", {"program": "print(1)"})))
        finally:
            await env.close()

    with pytest.raises(
        EpisodeFailed,
        match=r"Tool 'python' could not run a program: The sandbox service at http://127.0.0.1:9.*did not run",
    ):
        asyncio.run(episode())


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"cpu_s": 0}, "limits.cpu_s must be at least 1"),
        ({"memory": 1}, "Unknown limit 'memory'"),
        ({"isolation": "remote"}, "env.kwargs.url is the address"),
    ],
)
def test_impossible_sandbox_is_refused_when_the_environment_is_made(entry, sentence):
    with pytest.raises(ValueError, match=sentence):
        ToolEnv(tools=[{"program": "envs.tools.sandboxed:sandboxed", **entry}])
