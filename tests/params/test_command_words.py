"""`split_words`: a command's own words beside those of the configuration."""

import pytest

from siirl.errors import ConfigError, UnknownNameError
from siirl.params.command_words import Word, split_words, whole_number

WORDS = {"port": Word("8000", "TCP port"), "host": Word("127.0.0.1", "address")}


def test_own_words_are_taken_out_and_the_last_one_counts() -> None:
    own, others = split_words(["port=1", "env=math", "port=2", "env.port=3"], WORDS)
    assert own == {"port": "2", "host": "127.0.0.1"}
    assert others == ["env=math", "env.port=3"]


def test_a_value_may_have_an_equals_sign() -> None:
    assert split_words(["host=a=b"], WORDS)[0]["host"] == "a=b"


def test_a_flag_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="--port"):
        split_words(["--port"], WORDS)


def test_a_misspelt_word_is_refused_with_the_words_of_the_command() -> None:
    with pytest.raises(UnknownNameError) as refused:
        split_words(["env=math", "prot=1"], WORDS)
    assert str(refused.value) == (
        "Unknown word 'prot'. Did you mean 'port'? Words of this command: port, host. Type --help "
        "for their meaning."
    )


@pytest.mark.parametrize("word", ["cluster=x", "clster=x", "env.port=1", "nothing=1", "prot"])
def test_words_of_the_configuration_and_their_misspellings_are_left_to_its_parser(
    word: str,
) -> None:
    known = {**WORDS, "master": Word("1", "alike cluster=, which is a group")}
    assert split_words([word], known)[1] == [word]


@pytest.mark.parametrize("text", ["", "0", "11", "-1", "1.5", "1e3", 5000 * "9"])
def test_a_count_that_is_not_a_number_or_out_of_range_is_refused(text: str) -> None:
    assert whole_number("port", "10", least=1, most=10) == 10
    with pytest.raises(ConfigError, match=r"^port=.{0,20} must be a whole number from 1 to 10\.$"):
        whole_number("port", text, least=1, most=10)
