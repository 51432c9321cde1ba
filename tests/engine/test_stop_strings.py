"""Stop strings in tokens: found with the last token that completes them, also across the
interruption of a request.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from siirl.engine.rollout.stop_strings import says_stop, split_stop

STOP = ("</answer>", "END")


def decode(tokens):
    """A token is a byte; those from 256 on have no text."""
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


def test_a_stop_string_is_found_at_its_last_token():
    tokens = [*b"so: EN", 300, *b"D"]
    assert not says_stop(tokens[:-1], stop=STOP, decode=decode)
    assert says_stop(tokens, stop=STOP, decode=decode)


def test_a_stop_string_that_an_interruption_split_ends_with_its_second_half():
    tokens = [*b"5</ans", *b"wer> and more"]
    assert split_stop(tokens, 6, stop=STOP, decode=decode) == len(b"5</answer>")


def test_halves_of_different_stop_strings_do_not_stop():
    assert split_stop([*b"5</ans", *b"er> and more"], 6, stop=STOP, decode=decode) is None
    assert split_stop([*b"5</ans", *b"wer>"], 6, stop=(), decode=decode) is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    before=st.text(alphabet="abE", max_size=12),
    after=st.text(alphabet="abND", max_size=12),
    cut=st.integers(1, 2),
)
def test_a_split_stop_is_found_wherever_it_is_cut(before, after, cut):
    tokens = [*before.encode(), *b"END", *after.encode()]
    assert split_stop(tokens, len(before) + cut, stop=("END",), decode=decode) == len(before) + 3
