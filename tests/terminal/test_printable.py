"""Foreign text cannot control a terminal, and is otherwise unchanged."""

import pytest

from siirl.terminal.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("push-v3 Ω 火 👩\u200d🚀 a\u00a0b", "push-v3 Ω 火 👩\u200d🚀 a\u00a0b"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b2J\x7f\r", "\\x9b2J\\x7f\\r"),
        ("a\u2028b\u202ec\ud800", "a\\u2028b\\u202ec\\ud800"),
        ("one\n\ttwo", "one\n\ttwo"),
    ],
)
def test_signs_that_command_a_terminal_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_line_break_in_a_name_is_escaped() -> None:
    assert printable("push\nv3\t", keep="") == "push\\nv3\\t"
