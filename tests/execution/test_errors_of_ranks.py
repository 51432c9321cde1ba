"""Errors of a rank on Ray, which pickles them on the way to the command."""

import pickle
from types import SimpleNamespace

import pytest

from envs.mistakes import UsersError, users_report
from siirl.errors import RunFailed
from siirl.execution.scheduler.launch import _Rank


class OwnError(Exception):
    """Cannot be unpickled: its text is no argument of it."""

    def __init__(self, cause: str, *, remedy: str) -> None:
        super().__init__(f"{cause}: {remedy}")


def raise_in(error: Exception) -> None:
    """Have a rank's worker raise the error."""

    def run() -> None:
        raise error

    rank = SimpleNamespace(
        make=lambda **_: SimpleNamespace(run=run), rank=0, meeting=None, reporter=None
    )
    list(_Rank.run(rank, ""))


def test_the_command_gets_the_frames_of_a_users_error_from_a_rank_also_if_it_has_no_pickle():
    error = OwnError("no light", remedy="switch it on")
    error.add_note("(while node 'own' ran)")
    with pytest.raises(UsersError) as caught:
        raise_in(error)
    arrived = pickle.loads(pickle.dumps(caught.value))
    arrived.add_note("The run folder is runs/1")
    report = users_report(arrived).splitlines()
    assert report[0] == "Traceback (most recent call last):"
    assert not any("launch.py" in line for line in report)
    assert [line.rpartition(".")[2] for line in report[-3:]] == [
        "OwnError: no light: switch it on",
        "(while node 'own' ran)",
        "The run folder is runs/1",
    ]


def test_a_sentence_of_siirl_arrives_as_it_is():
    with pytest.raises(RunFailed, match="the disk is full"):
        raise_in(RunFailed("the disk is full"))
