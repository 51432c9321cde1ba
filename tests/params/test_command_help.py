"""Help of a command: its name as it was typed, in lines that fit the terminal."""

import sys

import pytest

from siirl.params.command_help import argument_parser, described, help_of_words
from siirl.params.command_words import Word

TEXT = """`siirl reward-check checkpoint=…`: a summary.

    # a comment
    siirl reward-check checkpoint=outputs/run/TIME

Prose of two lines in the source,
which are one paragraph.
"""


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/siirl"])
    monkeypatch.setenv("COLUMNS", "80")


def test_the_name_is_that_of_the_script() -> None:
    assert "\n    siirl reward-check checkpoint=" in described(TEXT, "siirl.reward_check")


def test_examples_and_summary_name_the_module_where_it_was_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/siirl/reward_check.py"])
    text = described(TEXT, "siirl.reward_check")
    assert text.startswith("`python -m siirl.reward_check checkpoint=…`: a summary.")
    assert "\n    python -m siirl.reward_check checkpoint=outputs/run/TIME" in text
    assert "siirl reward-check" not in text


def test_prose_is_one_paragraph_at_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prose = "Prose of two lines in the source, which are one paragraph."
    assert described(TEXT, "siirl.reward_check").endswith(prose)
    monkeypatch.setenv("COLUMNS", "40")
    assert described(TEXT, "siirl.reward_check").endswith(
        "Prose of two lines in the source, which\nare one paragraph."
    )


def test_a_long_example_is_continued_as_a_shell_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert "    siirl reward-check \\\n      checkpoint=outputs/run/TIME" in described(
        TEXT, "siirl.reward_check"
    )


def test_a_wide_terminal_gets_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert max(map(len, described("word " * 100, "siirl.serve").splitlines())) <= 80


def test_own_words_have_a_section_with_default_or_placeholder() -> None:
    words = {"port": Word("8000", "TCP port"), "token_file": Word("", "a file", "FILE")}
    lines = help_of_words(TEXT, "siirl.reward_check", words).splitlines()
    assert lines[0].startswith("usage: siirl reward-check [word=value ...]")
    at = lines.index("Words of this command")
    assert lines[at + 1 : at + 3] == [
        "  port=8000           TCP port",
        "  token_file=FILE     a file",
    ]


def test_the_parsers_help_has_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        described(TEXT, "siirl.reward_check")
        in argument_parser(TEXT, "siirl.reward_check").format_help()
    )


def test_of_a_flag_that_is_given_twice_the_last_value_counts_and_a_note_names_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argument_parser(TEXT, "siirl.reward_check")
    parser.add_argument("--every", type=int)
    parser.add_argument("words", nargs="*")
    flags = parser.parse_intermixed_args(["--every", "1", "a", "--every", "1", "b", "--every", "2"])
    assert (flags.every, flags.words) == (2, ["a", "b"])
    assert capsys.readouterr().err == (
        "Note: --every is given twice: 2 counts, the last value; 1 does not.\n"
    )
