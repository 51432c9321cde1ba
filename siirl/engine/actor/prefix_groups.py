"""Groups rows with the same prompt, so that the prompt is computed once; chooses the cheapest group
size.

The rollouts of a group answer one prompt, so its keys and values are the same in all of them, and
its gradients are a sum. If the prompt is computed once, followed by the responses, a group of n
rows with c prompt and t response tokens has c + n t tokens instead of n (c + t). The cost of masked
attention, however, grows with the square of the joint length: 4 S D operations per token and layer,
in addition to the 24 D^2 of the matrices. So n rows in parts of k cost n / k * (c + k t) * (24 D^2
+ 4 (c + k t) D). The minimum is at k = sqrt(c (6 D + c)) / t: whole groups of short answers, or a
few rows of long ones. Prefix Grouper (Liu et al. 2025, arXiv 2506.05433) also shares prompts, by
attention in two parts instead of a mask.
"""

# B row, S token, P prompt token

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PrefixGroup:
    """Rows with the same first tokens, which are computed once, or a single row."""

    rows: tuple[int, ...]
    prefix: int
    """Tokens that the rows share; 0 for a single row."""
    suffixes: tuple[int, ...]
    """Tokens of each row after the prefix."""

    @property
    def tokens(self) -> int:
        """Tokens that the model computes for all rows."""
        return self.prefix + sum(self.suffixes)


def prefix_groups(
    prompts_BP: torch.Tensor,
    lengths_B: torch.Tensor,
    prefixes_B: torch.Tensor,
    *,
    width: int,
    most_tokens: int | None = None,
) -> list[PrefixGroup]:
    """Put each row in one group, of the size with the cheapest passes.

    Args:
        prompts_BP: Tokens of the prompts, with one value for all padding.
        lengths_B: Tokens of each row that the model must see.
        prefixes_B: Number of these that belong to the prompt; 0 for a row that the model need not
            see.
        width: D, entries of a hidden state.
        most_tokens: Limit of a group of several rows; None: no limit.
    """
    lengths = lengths_B.tolist()
    prefixes = prefixes_B.tolist()
    members: dict[tuple[int, int], list[int]] = {}
    prompt_ids = torch.unique(prompts_BP, dim=0, return_inverse=True)[1].tolist()
    for row, prompt in enumerate(prompt_ids):
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
    """The cheapest number of rows for one computed prefix; at least one.

    Args:
        prefix: Tokens of the prompt.
        suffixes: Tokens of each row after it.
        width: D, entries of a hidden state.
        most_tokens: Limit of prefix and suffixes together.
    """
    mean = max(sum(suffixes) / len(suffixes), 1.0)
    cheapest = round(math.sqrt(prefix * (6 * width + prefix)) / mean)
    if most_tokens is not None:
        cheapest = min(cheapest, (most_tokens - prefix) // max(1, *suffixes))
    return min(max(cheapest, 1), len(suffixes))


def _equal_parts(count: int, most: int) -> list[slice]:
    """Cut `count` places into the fewest runs of at most `most`; lengths differ by at most 1."""
    parts = -(-count // most)
    ends = [count * part // parts for part in range(parts + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(ends)]
