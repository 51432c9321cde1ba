"""Detects stop strings in generated tokens."""

from collections.abc import Callable, Sequence

# Tokens without text (parts of a character, special ones) that may lie within a stop string.
SPARE_TOKENS = 8

Decode = Callable[[Sequence[int]], str]


def longest_in_tokens(stop: Sequence[str]) -> int:
    """Largest number of tokens that a stop string can span: all but `SPARE_TOKENS` hold at least
    one byte.
    """
    return max((len(text.encode()) for text in stop), default=0) + SPARE_TOKENS


def says_stop(tokens: Sequence[int], *, stop: Sequence[str], decode: Decode) -> bool:
    """Whether a stop string ends in the newest of `tokens`; assumes that none ended earlier."""
    text = decode(tokens[max(0, len(tokens) - longest_in_tokens(stop)) :])
    return any(string in text for string in stop)


def split_stop(
    tokens: Sequence[int], boundary: int, *, stop: Sequence[str], decode: Decode
) -> int | None:
    """Number of tokens up to the end of a stop string that spans `boundary`; None if none does.

    An engine finds stop strings only within the tokens of one request. After an interruption a stop
    string may span two requests.
    """
    if not stop:
        return None
    last = min(len(tokens), boundary + longest_in_tokens(stop))
    for end in range(boundary + 1, last + 1):
        if says_stop(tokens[:end], stop=stop, decode=decode):
            return end
    return None
