"""Where a text ends because it says one of certain strings, found in tokens: the last of them to be
generated decides.
"""

from collections.abc import Callable, Sequence

# Tokens without text of their own (parts of a character, special ones) that a stop string may be
# spread over beside those with text.
SPARE_TOKENS = 8

Decode = Callable[[Sequence[int]], str]


def longest_in_tokens(stop: Sequence[str]) -> int:
    """Tokens that one of the strings may be spread over: each token but a few brings a byte of text
    at least.
    """
    return max((len(text.encode()) for text in stop), default=0) + SPARE_TOKENS


def says_stop(tokens: Sequence[int], *, stop: Sequence[str], decode: Decode) -> bool:
    """Whether one of the strings ends in the newest of `tokens`, none having ended before."""
    text = decode(tokens[max(0, len(tokens) - longest_in_tokens(stop)) :])
    return any(string in text for string in stop)


def split_stop(
    tokens: Sequence[int], boundary: int, *, stop: Sequence[str], decode: Decode
) -> int | None:
    """Number of tokens up to the end of a stop string that begins before `boundary` and ends behind
    it; None where there is none.

    An engine looks for stop strings in what it generates. Where its request was interrupted and
    made again, it sees neither half.
    """
    last = min(len(tokens), boundary + longest_in_tokens(stop))
    ends = (
        end
        for end in range(boundary + 1, last + 1)
        if says_stop(tokens[:end], stop=stop, decode=decode)
    )
    return next(ends, None) if stop else None
