"""Which dead ranks are replaced."""

from typing import Any

from siirl.execution.scheduler.launch import Replacement, _Replacements

ROLLOUT_RANK = 1
DEATH = Exception("The actor is dead because its worker process has died.")


def replacements(released: list[int], *, has_room: bool = True) -> _Replacements:
    """Replaces rank 1 at most twice; its new stream is the word "again"."""
    replacement = Replacement(frozenset({ROLLOUT_RANK}), make=dict, died=released.append, at_most=2)

    def start(rank: int) -> Any:
        return "again"

    return _Replacements(replacement, start, has_room=lambda: has_room)


def test_a_rank_is_replaced_after_its_prompts_were_released_and_no_more_than_twice() -> None:
    released: list[int] = []
    found = replacements(released)
    deaths = [found.take_place_of(ROLLOUT_RANK, DEATH) for _ in range(3)]
    assert deaths == ["again", "again", None]
    assert released == [ROLLOUT_RANK, ROLLOUT_RANK]


def test_a_training_rank_is_not_replaced() -> None:
    assert replacements([]).take_place_of(0, DEATH) is None


def test_a_rank_whose_machine_has_left_is_not_replaced_where_it_would_wait_forever() -> None:
    released: list[int] = []
    assert replacements(released, has_room=False).take_place_of(ROLLOUT_RANK, DEATH) is None
    assert not released
