"""The exit status of a command, and its last message."""

import signal

import pytest

from siirl.errors import ConfigError, SiirlError
from siirl.interrupts import Interrupted
from siirl.params.exit_status import exit_status


def raising(error: BaseException):
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (ConfigError("lr=-1 is negative."), 2, "siirl: lr=-1 is negative."),
        (SiirlError("the disk is full"), 1, "siirl: the run failed: the disk is full"),
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
    with pytest.raises(ValueError, match="a bug"):
        exit_status(raising(ValueError("a bug")), what="the run")
    assert exit_status(raising(ValueError("a bug")), what="the run", failures=(ValueError,)) == 1
