"""Reports of other people's exceptions."""

import pytest

from envs.mistakes import one_line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Connection refused.", "Connection refused"),
        ("SSH-2.0\r\n\x1b[2J gone\n", "SSH-2.0 [2J gone"),
        ("", "OSError"),
        ("a" * 500, "a" * 160),
    ],
)
def test_a_message_is_one_line_of_visible_characters(message, line):
    assert one_line(OSError(message)) == line
