"""The ledger of rollouts: admission by AReaL's rule, and an account of every prompt."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.engine.rollout.ledger import Prompt, RolloutLedger
from siirl.errors import CheckpointError


def ledger(*, batch=4, max_staleness=1, ranks=1, streaming=True) -> RolloutLedger:
    return RolloutLedger(batch=batch, max_staleness=max_staleness, ranks=ranks, streaming=streaming)


def finish_all(book: RolloutLedger, rank: int, prompts, version: int = 0) -> None:
    for prompt in prompts:
        assert book.finish(rank, prompt, version=version)


def test_before_the_first_version_two_batches_may_run_one_version_behind():
    assert len(ledger().next_prompts(0, 100, acting=0)) == 8


def test_lockstep_starts_the_second_batch_when_the_first_step_is_done():
    book = ledger(max_staleness=0)
    finish_all(book, 0, book.next_prompts(0, 100, acting=0))
    assert book.take(4, step=1) is not None
    assert book.next_prompts(0, 100, acting=0) == []
    book.step_done(1)
    assert len(book.next_prompts(0, 100, acting=1)) == 4


def test_a_rank_with_old_weights_starts_no_more_than_these_allow():
    book = ledger(max_staleness=0)
    finish_all(book, 0, book.next_prompts(0, 100, acting=0))
    book.take(4, step=1)
    book.step_done(1)
    assert book.next_prompts(0, 100, acting=0) == []


def test_samples_of_weights_that_are_too_old_are_dropped_and_counted():
    book = ledger(max_staleness=0)
    finish_all(book, 0, book.next_prompts(0, 4, acting=0))
    book.take(4, step=1)
    book.step_done(1)
    finish_all(book, 0, book.next_prompts(0, 1, acting=1), version=0)
    assert book.too_old() == [4]
    assert book.totals()["discarded"] == 1


def test_prompts_of_a_dead_rank_start_again_with_the_same_ids():
    book = ledger(ranks=2)
    first, second = book.next_prompts(0, 1, acting=0)[0], book.next_prompts(1, 1, acting=0)[0]
    book.finish(0, first, version=0)
    assert book.lost(0) == [first.number]
    assert book.next_prompts(1, 1, acting=0) == [first]
    assert not book.finish(0, first, version=0)  # it comes back to life too late
    assert book.finish(1, second, version=0)


def test_blocks_give_each_rank_a_fixed_share_of_each_step():
    book = ledger(batch=5, max_staleness=1, ranks=2, streaming=False)
    shares = [[book.next_block(rank) for _ in range(3)] for rank in (1, 0)]
    assert [[p.number for p in block or ()] for block in shares[0]] == [[1, 3], [6, 8], []]
    assert [[p.number for p in block or ()] for block in shares[1]] == [[0, 2, 4], [5, 7, 9], []]


def test_a_refill_belongs_to_its_step():
    book = ledger(batch=2, max_staleness=0, streaming=False)
    finish_all(book, 0, book.next_block(0))
    assert [entry.prompt.number for entry in book.take(2, step=1)] == [0, 1]
    book.refill(1, 1)
    assert book.next_block(0) == [Prompt(2, step=1)]


def test_a_resumed_ledger_starts_again_what_ran_and_keeps_what_had_finished():
    book = ledger()
    prompts = book.next_prompts(0, 3, acting=0)
    book.finish(0, prompts[1], version=0)
    other = ledger()
    other.load_state_dict(book.state_dict())
    assert other.next_prompts(0, 2, acting=0) == [prompts[0], prompts[2]]
    assert list(other.finished) == [1]
    assert other.totals() == book.totals()


def after_one_step(**options) -> dict:
    """State of a run that used prompts 0 to 3, and has four prompts on the way."""
    book = ledger(**options)
    started = (
        book.next_prompts(0, 100, acting=0)
        if book.streaming
        else [*(book.next_block(0) or []), *(book.next_block(0) or [])]
    )
    finish_all(book, 0, started[:6])  # two of the next four
    book.take(4, step=1)
    book.step_done(1)
    return book.state_dict()


@pytest.mark.parametrize(("batch", "more"), [(4, 4), (8, 12), (2, 0), (3, 2)])
def test_a_stream_that_resumes_with_another_batch_keeps_the_bound_of_that_batch(batch, more):
    """Two finished and two running prompts wait; one version behind permits two batches."""
    book = ledger(batch=batch)
    book.load_state_dict(after_one_step())
    assert len(book.next_prompts(0, 100, acting=1)) == 2 + more


@pytest.mark.parametrize(
    "options", [{"batch": 2}, {"max_staleness": 0}], ids=["another batch", "weights too old"]
)
def test_blocks_that_do_not_fit_run_again(options):
    book = ledger(streaming=False, **options)
    book.load_state_dict(after_one_step(streaming=False, max_staleness=1))
    assert [prompt.number for prompt in book.next_block(0)] == [4, 5, 6, 7][: book.batch]
    assert book.totals()["used"] == 4


def test_blocks_discard_what_a_stream_had_on_the_way():
    book = ledger(streaming=False)
    book.load_state_dict(after_one_step())
    assert [prompt.number for prompt in book.next_block(0)] == [8, 9, 10, 11]
    assert book.totals() == {"started": 12, "running": 4, "finished": 0, "used": 4, "discarded": 4}


def test_a_stream_goes_on_with_what_blocks_had_on_the_way():
    book = ledger()
    book.load_state_dict(after_one_step(streaming=False))
    assert list(book.finished) == [4, 5]
    assert [prompt.number for prompt in book.next_prompts(0, 3, acting=1)] == [6, 7, 8]


def test_a_checkpoint_that_loses_a_prompt_is_refused():
    book = ledger()
    book.next_prompts(0, 3, acting=0)
    state = book.state_dict()
    state["pending"] = state["pending"][1:]
    with pytest.raises(CheckpointError, match="do not add up"):
        ledger().load_state_dict(state)


@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 5),
    staleness=st.integers(0, 3),
    ranks=st.integers(1, 3),
)
def test_every_prompt_is_in_one_account_and_the_bound_holds(seed, batch, staleness, ranks):
    """Any order of starts, ends, deaths and steps."""
    choose = random.Random(seed)
    book = ledger(batch=batch, max_staleness=staleness, ranks=ranks)
    running: list[tuple[int, Prompt]] = []
    for _ in range(60):
        rank = choose.randrange(ranks)
        action = choose.choice(["start", "start", "finish", "finish", "train", "die"])
        if action == "start":
            new = book.next_prompts(rank, choose.randint(0, 4), acting=book.version)
            running += [(rank, prompt) for prompt in new]
        elif action == "finish" and running:
            owner, prompt = running.pop(choose.randrange(len(running)))
            book.finish(owner, prompt, version=choose.randint(0, book.version))
        elif action == "die" and choose.random() < 0.3:
            book.lost(rank)
            running = [entry for entry in running if entry[0] != rank]
        elif action == "train":
            book.too_old()
            if book.take(batch, step=book.version + 1) is not None:
                book.step_done(book.version + 1)
        totals = book.totals()
        assert totals["started"] == sum(totals.values()) - totals["started"]
        waiting = totals["running"] + totals["finished"]
        assert waiting <= (staleness + book.version + 1) * batch
