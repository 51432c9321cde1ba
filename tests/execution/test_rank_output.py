"""Lines of the processes of a run on Ray, as the command prints them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from siirl.execution.scheduler.rank_output import REMEMBERED_LINES, Lines


def message(*lines: str, name: str | None, pid: object = 1, ip: str = "10.0.0.1") -> dict[str, Any]:
    """As Ray's log monitor sends it to a command at 10.0.0.1."""
    place = {"ip": ip, "localhost": "10.0.0.1", "is_err": True}
    return {"lines": list(lines), "actor_name": name, "pid": pid, **place}


def test_lines_of_the_first_rank_stay_and_those_of_others_have_a_name() -> None:
    lines = Lines()
    first = message("1930 prompts to train on.", "", name="rank 0")
    assert list(lines.of(first)) == ["1930 prompts to train on.", ""]
    assert list(lines.of(message("slow", name="rank 1", pid=2))) == ["rank 1: slow"]
    far = message("slow too", name="server 2", pid=3, ip="10.0.0.2")
    assert list(lines.of(far)) == ["server 2 on 10.0.0.2: slow too"]
    assert list(lines.of(message("early", name="_Rank", pid=4))) == ["Rank: early"]


def test_a_line_that_several_processes_write_is_printed_once_and_a_repeated_one_again() -> None:
    lines = Lines()
    assert list(lines.of(message("a is deprecated", name="rank 1", pid=2)))
    assert not list(lines.of(message("a is deprecated", name="rank 0", pid=1)))
    assert list(lines.of(message("a is deprecated", name="rank 1", pid=2)))


def test_a_long_run_does_not_remember_all_of_its_lines() -> None:
    lines = Lines()
    list(lines.of(message(*map(str, range(2 * REMEMBERED_LINES)), name="rank 0")))
    assert list(lines.of(message("0", name="rank 1", pid=2))) == ["rank 1: 0"]
    assert not list(lines.of(message(str(2 * REMEMBERED_LINES - 1), name="rank 1", pid=2)))


def test_rays_lines_have_its_name_and_no_marks() -> None:
    raylet = message(":info_message:A worker died.", name=None, pid="raylet")
    assert list(Lines().of(raylet)) == ["Ray: A worker died."]
    autoscaler = message("polling", ":event_summary:No room.", name=None, pid="autoscaler")
    assert list(Lines().of(autoscaler)) == ["Ray: No room."]


@pytest.mark.slow  # a separate Ray session with two ranks
def test_the_command_prints_what_ranks_write_without_a_word_of_rays(tmp_path: Path) -> None:
    program = Path(__file__).with_name("talking_ranks.py")
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert sorted(done.stderr.splitlines()) == [
        "Warning: loaded by rank 0",
        "rank 1: Warning: loaded by rank 1",
    ]
    (said,) = done.stdout.splitlines()
    assert said in ("said by all", "rank 1: said by all")
