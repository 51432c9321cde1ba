"""`split_words`: a command's own words beside those of the configuration."""

import pytest

from siirl.errors import UnknownNameError
from siirl.params.own_words import Word, split_words

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
