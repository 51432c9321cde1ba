"""Advantages on two real ranks equal those of one, for any distribution of groups and rows."""

import pytest
import torch
from estimator_cases import CASES, advantages_of, columns
from ragged import ragged
from ranks_at_work import run_on_ranks

from siirl.errors import TensorError

ROWS = 9
SHARES = {"even": 5, "uneven": 1, "one rank is empty": 0}
"""Rows of the first rank; groups are drawn without regard to rows, so that they lie on both."""


def batch():
    return columns(ragged(3, rows=ROWS))


def on_a_rank(ranks):
    """Advantages of own rows for every case and share, and what a rank says of each case when only
    rank 1 has a NaN in its rewards.
    """
    found = {}
    for share, first in SHARES.items():
        own = slice(0, first) if ranks.rank == 0 else slice(first, None)
        rows = {name: column[own] for name, column in batch().items()}
        found |= {(case, share): advantages_of(case, rows, ranks=ranks) for case in CASES}
    bad = {name: column[:4].clone() for name, column in batch().items()}
    bad["token_level_rewards"][2, 0] = torch.nan if ranks.rank == 1 else 0.0
    for case in CASES:
        try:
            advantages_of(case, bad, ranks=ranks)
        except TensorError as error:
            found[case, "refusal"] = str(error)
    return found


@pytest.fixture(scope="module")
def two_ranks():
    return run_on_ranks(on_a_rank, ranks=2)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_have_the_advantages_of_one(two_ranks, case, share):
    found = torch.cat([rank[case, share] for rank in two_ranks])
    torch.testing.assert_close(found, advantages_of(case, batch()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_a_nan_on_one_rank_is_refused_on_both(two_ranks, case):
    refusals = [rank[case, "refusal"] for rank in two_ranks]
    assert "another rank" in refusals[0].lower() and refusals[0].endswith(
        "its own message names the row."
    )
    assert refusals[1].startswith("token_level_rewards is nan in row 2, place [0]")
