"""The exit status of a command, and its last message."""

import functools
import os
import signal
import subprocess
import sys

import pytest

from envs.base import decision_space
from siirl.errors import ConfigError, SiirlError
from siirl.execution.dag.node import Node, NodeType
from siirl.interrupts import Interrupted
from siirl.terminal.exit_status import exit_status

OTHER_PIPE = BrokenPipeError(32, "Broken pipe")
PRINTING = """
import sys
from siirl import interrupts
from siirl.terminal.exit_status import exit_status
interrupts.listen()
interrupts.leave(exit_status(lambda: print("a line", file=sys.{output}), what="the run"))
"""
TABLES = """
from siirl import interrupts
from siirl.terminal.exit_status import exit_status
from siirl.reporting.command_console import CommandConsole
interrupts.listen()
interrupts.leave(exit_status(lambda: CommandConsole().print("a table"), what="the run"))
"""


class OwnExit:
    """Its code cannot be read."""

    @property
    def code(self) -> int:
        raise ZeroDivisionError("division by zero")


def own_function() -> None:
    raise ZeroDivisionError("division by zero")


def test_an_error_of_a_users_code_has_the_frames_from_its_function_on(capsys):
    for executable in (own_function, "envs.mistakes:describe_exit"):
        node = Node("own", NodeType.COMPUTE, executable_ref=executable)
        assert exit_status(functools.partial(node.run, batch={}, error=OwnExit())) == 1
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[1].endswith(("in own_function", "in code"))
        assert lines[-2:] == ["ZeroDivisionError: division by zero", "(while node 'own' ran)"]


def test_an_error_of_a_shipped_node_keeps_its_traceback():
    node = Node("shipped", NodeType.COMPUTE, executable_ref="envs.base:decision_space")
    with pytest.raises(TypeError) as caught:
        exit_status(functools.partial(node.run, batch={}, counts=None))
    assert caught.value.__notes__ == ["(while node 'shipped' ran)"]


def raising(error: BaseException):
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (ConfigError("lr=-1 is negative."), 2, "siirl: lr=-1 is negative."),
        (SiirlError("the disk is full"), 1, "siirl: the run failed: the disk is full"),
        (
            SystemExit(0),
            1,
            "siirl: the run failed: code that it called ended with sys.exit(0): raise an error "
            "that gives the reason instead.",
        ),
        (KeyboardInterrupt(), 130, "siirl: interrupted"),
        (Interrupted(signal.SIGTERM), 143, "siirl: interrupted"),
    ],
)
def test_each_ending_has_a_status_and_a_sentence(error, status, sentence, capsys):
    error.add_note("Resume with the same command.")
    assert exit_status(raising(error), what="the run") == status
    assert capsys.readouterr().err == f"{sentence}\nResume with the same command.\n"
    assert exit_status(raising(error), what="the run", notes=False) == status
    assert capsys.readouterr().err == f"{sentence}\n"


def test_a_command_without_a_status_succeeds():
    assert exit_status(lambda: None, what="the run") == 0
    assert exit_status(lambda: 3, what="the run") == 3


def test_an_error_of_the_program_keeps_its_traceback():
    with pytest.raises(TypeError, match="decision_space"):
        exit_status(decision_space, what="the run")
    assert exit_status(raising(ValueError("a bug")), what="the run", failures=(ValueError,)) == 1


def test_a_broken_pipe_that_is_not_the_output_is_an_error_like_others(capsys):
    assert exit_status(raising(OTHER_PIPE), what="the run") == 1
    assert capsys.readouterr().err.endswith("\nBrokenPipeError: [Errno 32] Broken pipe\n")
    assert exit_status(raising(OTHER_PIPE), what="the server", failures=(OSError,)) == 1
    sentence = "siirl: the server failed: [Errno 32] Broken pipe\n"
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize(
    ("program", "output"), [(PRINTING, "stdout"), (PRINTING, "stderr"), (TABLES, "stdout")]
)
def test_a_command_whose_output_is_closed_ends_silently_with_status_141(program, output):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, output: closed}
        command = [sys.executable, "-c", program.format(output=output)]
        done = subprocess.run(command, **pipes, check=False)
    assert done.returncode == 128 + signal.SIGPIPE
    assert not done.stdout and not done.stderr


def test_an_error_of_the_file_system_names_the_place_that_was_to_be_written(capsys):
    full = OSError(28, "No space left on device", "out/model.bin")
    assert exit_status(raising(full), what="the export", place="--output out") == 1
    assert capsys.readouterr().err == (
        "siirl: --output out cannot be written: No space left on device (out/model.bin). "
        "Choose another place.\n"
    )


def test_a_failure_without_a_subject_is_a_whole_sentence(capsys):
    assert exit_status(raising(SiirlError("The page is too large."))) == 1
    assert capsys.readouterr().err == "siirl: The page is too large.\n"
