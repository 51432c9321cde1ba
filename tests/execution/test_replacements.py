"""Which dead ranks are replaced."""

from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from siirl.errors import EngineDied, RunFailed, SiirlError
from siirl.execution.scheduler.launch import Replacement, _replaced, _Replacements

ROLLOUT_RANK = 1
DEATH = "it was killed, or it crashed"


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


def test_the_last_death_is_reported_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    found = replacements([])
    for _ in range(3):
        found.take_place_of(ROLLOUT_RANK, DEATH)
    assert [record.message for record in caplog.records][1:] == [
        f"The process of rank 1 died ({DEATH}) and is replaced.",
        f"The process of rank 1 died ({DEATH}) after 2 replacements: the run ends.",
    ]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RayActorError(), ""),
        (RayTaskError("run", "", EngineDied("vLLM's process died.")), "vLLM's process died"),
    ],
)
def test_a_rank_is_replaced_if_its_process_or_that_of_its_engine_died(
    error: Exception, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert _replaced(ROLLOUT_RANK, error, replacements([])) == "again"
    assert cause in caplog.text


@pytest.mark.parametrize("cause", [RunFailed("the disk is full"), ValueError("own code")])
def test_a_rank_that_raises_an_error_is_not_replaced(cause: SiirlError | ValueError) -> None:
    assert _replaced(ROLLOUT_RANK, RayTaskError("run", "", cause), replacements([])) is None


def test_a_training_rank_is_not_replaced() -> None:
    assert replacements([]).take_place_of(0, DEATH) is None


def test_a_rank_whose_machine_has_left_is_not_replaced_where_it_would_wait_forever() -> None:
    released: list[int] = []
    assert replacements(released, has_room=False).take_place_of(ROLLOUT_RANK, DEATH) is None
    assert not released
