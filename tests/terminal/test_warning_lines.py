"""Python's warnings as lines of a command, each printed once."""

import logging
import os
import subprocess
import sys
import warnings

import pytest

from siirl.terminal import warning_lines

TEXT = "These runs are on stand-in assets: not scores, see the documents."


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    monkeypatch.setattr(warning_lines, "_said", set())
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    warning_lines.show()


def warn(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = warning_lines._say
        warnings.warn(text, UserWarning, stacklevel=1)


def test_a_warning_is_one_line_without_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    warn(TEXT)
    warn(TEXT)
    assert capsys.readouterr().err == f"Warning: {TEXT}\n"


def test_a_logged_warning_begins_like_the_others_unless_its_logger_has_a_handler() -> None:
    program = """
import logging
from siirl.terminal import warning_lines
warning_lines.show()
logging.getLogger("envs.some").warning("%d rows are not read", 3)
logging.getLogger("siirl.some").error("an episode failed")
logging.getLogger("own").addHandler(logging.StreamHandler())
logging.getLogger("own").warning("as its program wants it")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == [
        "Warning: 3 rows are not read",
        "Error: an episode failed",
        "as its program wants it",
    ]


def test_a_logged_warning_with_a_wrong_format_does_not_end_the_program() -> None:
    program = """
import logging
from siirl.terminal import warning_lines
warning_lines.show()
logging.getLogger("library").warning("loss %d", "x")
print("goes on")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "goes on\n"
    assert "Logging error" in done.stderr


def test_a_process_that_is_started_later_does_not_repeat_it() -> None:
    warn(TEXT)
    assert os.environ["PYTHONWARNINGS"] == "ignore:These runs are on stand-in assets"
    program = f"import warnings; warnings.warn({TEXT!r}); warnings.warn('another text')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "stand-in" not in done.stderr and "another text" in done.stderr


def test_a_short_beginning_silences_no_other_warning() -> None:
    warn("Note: a text")
    assert "PYTHONWARNINGS" not in os.environ
