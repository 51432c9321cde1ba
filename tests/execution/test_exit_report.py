"""A child prints a message on stderr for a process that a timer or a signal ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from siirl.execution.scheduler import exit_report

# A program that ends within the context in one of several ways: its code and its exit status.
PROCESS = """
import os, signal, sys
from pathlib import Path
from siirl.execution.scheduler.exit_report import exit_report
folder = Path(sys.argv[1])
traces = folder / "traces"
reasons = ["the run failed: " + reason for reason in ("Nothing", "Killed", "No memory")]
with exit_report(*reasons, traces=traces, run_folder=folder, before="earlier"):
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


def test_a_killed_process_is_named_by_its_number(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from siirl.execution.scheduler.watchdog import OwnWatch
print(os.getpid(), flush=True)
with OwnWatch(limit_s=60.0, folder=Path({str(tmp_path)!r}), environment="math"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert f"Its process (pid {done.stdout.strip()}) died: it was killed (kill -9" in done.stderr


def test_a_kill_of_the_kernel_while_the_process_ended_is_reported_as_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts, traces = tmp_path / "vmstat", tmp_path / "traces"
    counts.write_text("pgfault 7\noom_kill 2\n")
    traces.touch()
    monkeypatch.setattr(exit_report, "KERNEL_COUNTS", counts)

    class EndOfTheCommand:
        def read(self) -> bytes:
            counts.write_text("pgfault 9\noom_kill 3\n")
            return b""

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=EndOfTheCommand()))
    exit_report.wait_and_report("Hangs", "Killed", "No memory", str(traces), "", "")
    assert capsys.readouterr().err == "siirl: No memory\n"


def test_a_process_that_ended_by_itself_has_none(tmp_path: Path) -> None:
    assert ended(tmp_path, "by itself, though its traces were asked for") == ""
