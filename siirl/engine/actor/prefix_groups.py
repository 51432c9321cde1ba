"""Which rows share their prompt, and how many of them are worth computing it once for.

The rollouts of a group answer one prompt, so its keys and values are the same in all of them, and
so are their gradients but for a sum. Computed once, with the responses behind it side by side, a
group of n rows of c prompt and t response tokens has c + n t tokens in place of n (c + t). Masked
attention, though, costs the square of what stands together: 4 S D operations a token and layer
beside the 24 D^2 of the matrices, which makes n rows in parts of k cost n / k * (c + k t) * (24 D^2
+ 4 (c + k t) D). That is least at k = sqrt(c (6 D + c)) / t: whole groups of short answers, hardly
any of long ones. Prefix Grouper (Liu et al. 2025, arXiv 2506.05433) shares prompts likewise, by
attention in two parts in place of a mask.
"""

# B row, S token, P prompt token

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PrefixGroup:
    """Rows with the same first tokens, which are computed once; or a single row, of which nothing
    is shared.
    """

    rows: tuple[int, ...]
    prefix: int
    """Tokens that the rows share; 0 for a single row."""
    suffixes: tuple[int, ...]
    """Tokens of each row behind them."""

    @property
    def tokens(self) -> int:
        """What the model computes for all rows together."""
        return self.prefix + sum(self.suffixes)


def prefix_groups(
    prompts_BP: torch.Tensor,
    lengths_B: torch.Tensor,
    prefixes_B: torch.Tensor,
    *,
    width: int,
    most_tokens: int | None = None,
) -> list[PrefixGroup]:
    """Every row in one group; groups of as many rows as make the passes cheapest.

    Args:
        prompts_BP: Tokens of the prompts, the same number everywhere in padding.
        lengths_B: Tokens of each row that the model has to see.
        prefixes_B: How many of them belong to the prompt; 0 for a row of which nothing is to be
            seen.
        width: D, entries of a hidden state.
        most_tokens: No group of several rows has more; None: no limit.
    """
    lengths, prefixes = lengths_B.tolist(), prefixes_B.tolist()
    members: dict[tuple[int, int], list[int]] = {}
    for row, prompt in enumerate(torch.unique(prompts_BP, dim=0, return_inverse=True)[1].tolist()):
        members.setdefault((prompt, prefixes[row]), []).append(row)
    groups = []
    for (_, prefix), rows in members.items():
        suffixes = [lengths[row] - prefix for row in rows]
        size = rows_at_once(prefix=prefix, suffixes=suffixes, width=width, most_tokens=most_tokens)
        for part in _equal_parts(len(rows), size):
            chosen = rows[part]
            if len(chosen) == 1:
                groups.append(
                    PrefixGroup(rows=(chosen[0],), prefix=0, suffixes=(lengths[chosen[0]],))
                )
            else:
                groups.append(
                    PrefixGroup(rows=tuple(chosen), prefix=prefix, suffixes=tuple(suffixes[part]))
                )
    return groups


def rows_at_once(
    *, prefix: int, suffixes: Sequence[int], width: int, most_tokens: int | None
) -> int:
    """How many rows behind one computed prefix are cheapest; at least one.

    Args:
        prefix: Tokens of the prompt.
        suffixes: Tokens of each row behind it.
        width: D, entries of a hidden state.
        most_tokens: Bound of prefix and suffixes together.
    """
    mean = max(sum(suffixes) / len(suffixes), 1.0)
    cheapest = round(math.sqrt(prefix * (6 * width + prefix)) / mean)
    if most_tokens is not None:
        cheapest = min(cheapest, (most_tokens - prefix) // max(1, *suffixes))
    return min(max(cheapest, 1), len(suffixes))


def _equal_parts(count: int, most: int) -> list[slice]:
    """`count` places in as few runs of at most `most` as there can be, none more than one longer
    than another.
    """
    parts = -(-count // most)
    ends = [count * part // parts for part in range(parts + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(ends)]
