"""Tokens that Clip-Cov and KL-Cov choose: by hand, against sorting, and for any
distribution of rows over ranks and any padding.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_batches import QUICK, loss_batch
from ragged import SEEDS
from thread_ranks import on_threads

from siirl.algos.policy_losses import select_clip_cov, select_kl_cov
from siirl.algos.policy_losses.covariance import token_covariance
from siirl.algos.ranks import ALONE
from siirl.errors import ConfigError, TensorError

FEW = settings(QUICK, max_examples=10)
ROWS = 7


def covariance_loop(batch):
    """(log pi - mean log pi) (A - mean A) of each kept token, by place."""
    places = [tuple(place) for place in batch.mask_BT.nonzero().tolist()]
    log_prob = sum(batch.log_probs_BT[place].item() for place in places) / len(places)
    advantage = sum(batch.advantages_BT[place].item() for place in places) / len(places)
    return {
        place: (batch.log_probs_BT[place].item() - log_prob)
        * (batch.advantages_BT[place].item() - advantage)
        for place in places
    }


@QUICK
@given(seed=SEEDS)
def test_covariances_are_those_of_a_loop(seed):
    batch = loss_batch(seed)
    found_BT = token_covariance(
        log_probs_BT=batch.log_probs_BT, advantages_BT=batch.advantages_BT, mask_BT=batch.mask_BT
    )
    for place, covariance in covariance_loop(batch).items():
        assert found_BT[place].item() == pytest.approx(covariance, rel=1e-9, abs=1e-9)
    assert bool((found_BT[~batch.mask_BT] == -torch.inf).all())


def columns(batch, rows=slice(None), pad=(0, 0)):
    names = ("log_probs_BT", "old_log_probs_BT", "advantages_BT", "mask_BT")
    return {name: torch.nn.functional.pad(getattr(batch, name)[rows], pad) for name in names}


def kl_cov(batch, rows=slice(None), *, ranks=ALONE, pad=(0, 0), share=0.2):
    given_columns = columns(batch, rows, pad)
    del given_columns["old_log_probs_BT"]
    return select_kl_cov(
        **given_columns, place_B=torch.arange(ROWS)[rows], kl_cov_ratio=share, ranks=ranks
    )


def clip_cov(batch, rows=slice(None), *, ranks=ALONE, pad=(0, 0), share=0.2, seed=5):
    return select_clip_cov(
        **columns(batch, rows, pad),
        place_B=torch.arange(ROWS)[rows],
        generator=torch.Generator().manual_seed(seed),
        clip_cov_ratio=share,
        clip_cov_lb=-2.0,
        clip_cov_ub=4.0,
        ranks=ranks,
    )


@QUICK
@given(seed=SEEDS, share=st.sampled_from([0.01, 0.2, 1.0]))
def test_kl_cov_chooses_the_largest_covariances(seed, share):
    batch = loss_batch(seed)
    covariances = covariance_loop(batch)
    wanted = max(1, int(share * len(covariances)))
    expected = sorted(covariances, key=lambda place: -covariances[place])[:wanted]
    found = [tuple(place) for place in kl_cov(batch, share=share).nonzero().tolist()]
    assert sorted(found) == sorted(expected)


@QUICK
@given(seed=SEEDS, share=st.sampled_from([0.01, 0.2, 1.0]))
def test_clip_cov_draws_its_share_from_the_candidates(seed, share):
    batch = loss_batch(seed)
    candidates = set()
    for place, covariance in covariance_loop(batch).items():
        ratio, advantage = (
            (batch.log_probs_BT - batch.old_log_probs_BT)[place].exp().item(),
            batch.advantages_BT[place].item(),
        )
        clipped = advantage * min(max(ratio, 0.8), 1.2) < advantage * ratio
        if -2.0 < covariance < 4.0 and not clipped:
            candidates.add(place)
    found = {tuple(place) for place in clip_cov(batch, share=share).nonzero().tolist()}
    wanted = max(1, int(share * int(batch.mask_BT.sum())))
    assert found <= candidates
    assert len(found) == min(wanted, len(candidates))


def test_another_state_of_the_generator_draws_other_tokens():
    batch = loss_batch(1)
    assert not torch.equal(clip_cov(batch, seed=5), clip_cov(batch, seed=6))


SELECTIONS = {"clip_cov": clip_cov, "kl_cov": kl_cov}


@FEW
@given(
    seed=SEEDS,
    owner=st.lists(st.integers(0, 2), min_size=ROWS, max_size=ROWS),
    left=st.integers(0, 2),
)
@pytest.mark.parametrize("name", SELECTIONS)
def test_the_choice_is_the_same_however_rows_are_spread_over_ranks_and_padded(
    name, seed, owner, left
):
    batch, select = loss_batch(seed), SELECTIONS[name]
    whole = select(batch)
    shares = [
        torch.tensor([row for row in reversed(range(ROWS)) if owner[row] == rank], dtype=torch.long)
        for rank in range(3)
    ]
    found = on_threads(
        lambda ranks, rows: select(batch, rows, ranks=ranks, pad=(left, 1)),
        [(rows,) for rows in shares],
    )
    width = whole.shape[1]
    for rows, part in zip(shares, found, strict=True):
        assert torch.equal(part[:, left : left + width], whole[rows])


def test_of_equal_covariances_the_first_rows_and_tokens_are_chosen():
    one = torch.ones(3, 2)
    selected = select_kl_cov(
        log_probs_BT=-one,
        advantages_BT=one,
        mask_BT=one,
        place_B=torch.tensor([2, 0, 1]),
        kl_cov_ratio=0.5,
    )
    assert selected.tolist() == [[False, False], [True, True], [True, False]]


def test_kl_cov_by_hand():
    log_probs = torch.tensor([[-1.0, -3.0, -1.0, -3.0]])
    # a likely token with a good advantage, and a rare one with a bad
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    selected = select_kl_cov(
        log_probs_BT=log_probs,
        advantages_BT=advantages,
        mask_BT=torch.ones(1, 4),
        place_B=torch.zeros(1, dtype=torch.long),
        kl_cov_ratio=0.5,
    )
    assert selected.tolist() == [[True, False, False, True]]


def test_a_batch_without_tokens_has_nothing_to_choose():
    batch = loss_batch(0)
    batch.mask_BT[:] = False
    assert not bool(kl_cov(batch).any() | clip_cov(batch).any())


def test_places_that_do_not_fit_the_rows_are_refused():
    one = torch.ones(3, 2)
    with pytest.raises(TensorError, match=r"rows has shape \[3\]"):
        select_kl_cov(log_probs_BT=one, advantages_BT=one, mask_BT=one, place_B=torch.arange(2))


def test_a_share_of_nothing_is_refused():
    one = torch.ones(1, 1)
    with pytest.raises(ConfigError, match="kl_cov_ratio=0 is a share"):
        select_kl_cov(
            log_probs_BT=one,
            advantages_BT=one,
            mask_BT=one,
            place_B=torch.arange(1),
            kl_cov_ratio=0,
        )
