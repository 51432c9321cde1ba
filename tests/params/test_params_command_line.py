"""Flags and help."""

import re

import pytest
import yaml

from siirl.errors import ConfigError, UnknownNameError
from siirl.params.command_line import Action, note_repeated, read_command_line
from siirl.params.config_groups import options, summary
from siirl.params.help import commented, help_text
from siirl.params.parser import known_keys, parse_config, to_yaml
from siirl.terminal.terminal_lines import USUAL_COLUMNS


def test_every_word_that_is_not_a_flag_belongs_to_the_parser() -> None:
    command = read_command_line(["pipeline=grpo", "--config", "a.yaml", "trainer.seed=1"])
    assert (command.action, command.config_file, command.overrides) == (
        Action.RUN,
        "a.yaml",
        ("pipeline=grpo", "trainer.seed=1"),
    )


def test_of_a_key_that_is_given_twice_the_last_value_counts_and_a_note_names_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    note_repeated(["trainer.seed=1", "port=1", "env=math", "++trainer.seed=2", "port=1"])
    assert capsys.readouterr().err == (
        "Note: trainer.seed is given twice: 2 counts, the last value; 1 does not.\n"
    )
    assert parse_config(["trainer.seed=1", "++trainer.seed=2"]).trainer.seed == 2


@pytest.mark.parametrize(
    ("words", "action"),
    [
        (["--help"], Action.HELP),
        (["-h"], Action.HELP),
        (["--plan"], Action.PLAN),
        (["--cfg", "job"], Action.PRINT_CONFIG),
        (["--cfg=job"], Action.PRINT_CONFIG),
        (["-c", "job"], Action.PRINT_CONFIG),
    ],
)
def test_flags_choose_the_action(words: list[str], action: Action) -> None:
    assert read_command_line(words).action is action


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hlep"], "Unknown flag '--hlep'. Did you mean '--help'?"),
        (["--multirun"], "one command is one run"),
        (["-m"], "one command is one run"),
        (["--config-dir=x"], "give --config FILE"),
        (["--cfg", "hydra"], "Unknown value of --cfg 'hydra'"),
        (["--cfg"], "--cfg needs a value: --cfg job"),
        (["--config"], "--config needs a value"),
    ],
)
def test_other_flags_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_command_line(words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (
            "env.kwargs.token_file=~/.cache/siirl/serve/8000.token",
            "~/.cache/siirl/serve/8000.token",
        ),
        ("env.kwargs.files=[~/a.jsonl,~ann/b.jsonl]", ["~/a.jsonl", "~ann/b.jsonl"]),
        ("env.kwargs={file: ~/a.jsonl}", {"file": "~/a.jsonl"}),
        ("env.kwargs.text='a ,~b'", "a ,~b"),
    ],
)
def test_a_path_below_the_home_folder_needs_no_quotes(word: str, value: object) -> None:
    kwargs = parse_config(["env=custom", "env.name=module:Class", word]).env.kwargs
    assert value in (kwargs, *kwargs.values())


def test_help_shows_every_key() -> None:
    words = help_text(usage="", user_groups={}).split()
    assert [place for place in known_keys({}) if place not in words] == []


def test_help_shows_every_group_with_every_option_and_what_it_is_for() -> None:
    lines = help_text(usage="", user_groups={}).splitlines()
    for group, names in options().items():
        assert f"  {group}=" in lines
        for name in names:
            described = [line for line in lines if line.startswith(f"    {name} ")]
            assert described, f"{group}={name} is not described: give its file a first comment line"


def test_the_purpose_of_an_option_is_a_whole_sentence() -> None:
    cut = [
        f"{group}={name}"
        for group, names in options().items()
        for name in names
        if not summary(group, name).endswith(".")
    ]
    assert cut == []


def test_keys_in_the_help_stand_as_they_are_typed() -> None:
    """`rollout.n` would be answered with "unknown key": it is `actor_rollout_ref.rollout.n`."""
    keys = known_keys({})
    ends = {tuple(place.split(".")[-2:]) for place in keys if place.count(".") > 1}
    named = re.findall(r"(?<![\w.])[a-z_]+(?:\.[a-z_0-9]+)+", help_text(usage="", user_groups={}))
    assert [name for name in named if name not in keys and tuple(name.split(".")) in ends] == []


def test_help_fits_the_terminal() -> None:
    assert (
        max(len(line) for line in help_text(usage="", user_groups={}).splitlines()) <= USUAL_COLUMNS
    )


def test_help_is_limited_to_a_topic() -> None:
    assert read_command_line(["--help", "trainer"]).topic == "trainer"
    assert read_command_line(["env=math", "--help"]).topic is None
    text = help_text(usage="", user_groups={}, topic="trainer")
    assert "trainer.total_steps" in text
    assert "algorithm.gamma" not in text


def test_an_unknown_topic_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'trainer'"):
        help_text(usage="", user_groups={}, topic="trainr")


def test_a_commented_configuration_is_the_same_configuration() -> None:
    text = to_yaml(parse_config([]))
    explained = commented(text)
    assert yaml.safe_load(explained) == yaml.safe_load(text)
    assert "  # integer. " in explained
    assert read_command_line(["--cfg", "comments"]).comments


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--plan=no"], r"--plan=no: --plan takes no value\. Write --plan, or leave it out\."),
        (["--config", "a.yaml", "--config=b.yaml"], r"put the keys of a\.yaml into the other file"),
    ],
)
def test_a_value_that_would_be_ignored_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_command_line(words)
