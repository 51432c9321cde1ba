"""A child prints a message on stderr for a process that a timer or a signal ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A program that ends within the context in one of several ways: its code and its exit status.
PROCESS = """
import os, signal, sys
from pathlib import Path
from siirl.execution.scheduler.exit_report import exit_report
folder = Path(sys.argv[1])
traces = folder / "traces"
with exit_report("the run failed: Nothing", "the run failed: Killed", traces=traces, run_folder=folder, before="earlier"):
    {ends}
"""
ENDS = {
    "by the timer": (
        "os.write(os.open(folder / 'traces', os.O_WRONLY), b'Timeout'); os._exit(1)",
        1,
    ),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", -9),
    "by its own code": ("os._exit(3)", 3),
    "by itself, though its traces were asked for": ("(folder / 'traces').write_text('traces')", 0),
}


def ended(folder: Path, how: str) -> str:
    (folder / "traces").touch()
    program, status = ENDS[how]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS.format(ends=program), folder],
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("how", "reason"),
    [("by the timer", "Nothing"), ("killed", "Killed"), ("by its own code", "Killed")],
)
def test_the_child_reports_the_reason_and_how_to_resume(
    tmp_path: Path, how: str, reason: str
) -> None:
    lines = ended(tmp_path, how).splitlines()
    assert lines[0] == f"siirl: the run failed: {reason}"
    assert lines[-1] == "Resume with the same command and trainer.resume=earlier"


def test_a_watched_process_that_code_in_it_ended_names_the_cluster_that_isolates_it(
    tmp_path: Path,
) -> None:
    program = f"""
import os
from pathlib import Path
from siirl.execution.scheduler.watchdog import OwnWatch
with OwnWatch(limit_s=60.0, folder=Path({str(tmp_path)!r}), environment="my_envs:Dock"):
    os._exit(3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 3
    assert (
        "or code in it, such as environment my_envs:Dock, ended it; cluster=ray gives"
        in done.stderr
    )


def test_a_process_that_ended_by_itself_has_none(tmp_path: Path) -> None:
    assert ended(tmp_path, "by itself, though its traces were asked for") == ""
