"""Messages on a terminal and in a file."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from siirl.terminal.terminal_lines import folded

COMMAND = [sys.executable, "-m", "siirl.train", "trainer.total_step=3", "env=math"]
SCREEN = struct.pack("HHHH", 24, 80, 0, 0)


def test_a_long_line_has_a_hanging_indent_and_a_short_one_stays() -> None:
    assert folded("siirl: two words\nand three more", columns=11) == (
        "siirl: two\n  words\nand three\n  more"
    )


def test_a_numbered_line_continues_below_its_text() -> None:
    assert folded("  1. one two three", columns=12) == "  1. one two\n     three"


def test_a_path_longer_than_the_line_stays_whole() -> None:
    assert folded("see /a/long-path/to/a/file.yaml there", columns=12) == (
        "see\n  /a/long-path/to/a/file.yaml\n  there"
    )


def test_a_command_stays_on_one_line_without_the_sentence_around_it() -> None:
    text = "no wandb. Type: pip install wandb==0.2. Or leave it"
    assert folded(text, columns=20) == ("no wandb. Type:\n  pip install wandb==0.2.\n  Or leave it")
    assert folded("Type: make setup, and run with it", columns=16) == (
        "Type:\n  make setup,\n  and run with\n  it"
    )


def test_a_refusal_fits_80_columns_on_a_terminal_and_is_one_line_in_a_file() -> None:
    piped = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    screen = on_a_terminal()
    assert piped.stderr.count("\n") == 1
    assert piped.stderr.startswith("siirl: Unknown key 'trainer.total_step' (command line). Did")
    assert max(map(len, screen.splitlines())) <= 80
    assert screen.split() == piped.stderr.split()


def on_a_terminal() -> str:
    """The output on a terminal of 80 columns."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, SCREEN)
    subprocess.run(COMMAND, stdin=end, stdout=end, stderr=end, check=False)
    os.close(end)
    text = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    return text
