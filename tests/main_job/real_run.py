"""`python -m siirl.train` as a user starts it: a process with children, watched from outside.

The job is CartPole with a small network, because what is tested is how runs begin and end. A
session of the operating system holds a run's processes together, so that those are found whose
parent has died.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.processes import RAY_AGENTS, descendants_of, living_processes, processes_of_session
from siirl import stacks
from siirl.execution.scheduler.ray_session import TIMED_OUT

__all__ = [
    "RAY_AGENTS",
    "RealRun",
    "descendants_of",
    "hears_signals",
    "living_processes",
    "start_ray",
]

RAY = Path(sys.executable).parent / "ray"

SMALL_JOB = (
    *("data.train_batch_size=2", "actor_rollout_ref.rollout.n=3"),
    *(
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.actor.ppo_epochs=1",
        "env.num_servers=1",
        "env.envs_per_server=4",
    ),
    *(
        "trainer.val_episodes=0",
        "trainer.record_episodes=0",
        "trainer.max_minutes=null",
        "trainer.save_freq=1",
        "trainer.logger=[console]",
        "trainer.threads_per_rank=1",
    ),
    "actor_rollout_ref.model.options={chunk_length: 4, width: 16}",
)
CARTPOLE = ("env=gymnasium", "env.id=CartPole-v1")
AGENTS_END_WITHIN_S = 600.0  # about a minute; only a hang takes longer
STACKS_WRITTEN_S = 2.0  # a process writes its stacks at once
START_S = 1500.0  # until the first sign of a run, 40 s on two idle cores; only a hang takes longer


class RealRun:
    """A run of the small job; `words` win over it.

    Args:
        words: Overrides; one of another environment takes CartPole's place, one of another pipeline
            GRPO's.
        folder: `outputs` and the captured text go there.
        number: Tells the runs of a test apart.
        environment: Environment variables beside this process's.
    """

    def __init__(
        self, *words: str, folder: Path, number: int = 0, environment: dict[str, str] | None = None
    ) -> None:
        self.outputs, self._text = folder / "outputs", folder / f"text_{number}"
        groups = {word.partition("=")[0] for word in words}
        small_job = (
            *(() if "env" in groups else CARTPOLE),
            *(() if "pipeline" in groups else ("pipeline=grpo",)),
            *SMALL_JOB,
        )
        command = [
            sys.executable,
            "-m",
            "siirl.train",
            *small_job,
            f"trainer.output_dir={self.outputs}",
            *words,
        ]
        with self._text.open("w") as text:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=text,
                stderr=text,
                env=os.environ | (environment or {}),
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        """Output to the terminal so far."""
        return self._text.read_text()

    @property
    def folders(self) -> list[Path]:
        """Run folders below its output folder, by name."""
        return sorted(path for path in self.outputs.glob("*/*") if path.is_dir())

    def checkpoints(self) -> list[str]:
        """Names of the whole checkpoints of its only run folder."""
        return (
            sorted(path.name for path in self.folders[0].glob("checkpoints/step_*"))
            if self.folders
            else []
        )

    def processes(self) -> dict[int, str]:
        """Title by number of every process of this run that lives."""
        return processes_of_session(self.process.pid)

    def wait_until(self, happened: Callable[[], bool], *, timeout_s: float = START_S) -> None:
        """Wait for a condition; AssertionError with the run's text if it stays false or the run
        ends first.
        """
        deadline = time.monotonic() + timeout_s
        while not happened():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s} s:\n{self._where_it_is()}")
            assert self.process.poll() is None or happened(), (
                f"ended with {self.process.returncode}:\n{self.text}"
            )
            time.sleep(0.05)

    def wait(self, *, timeout_s: float = START_S) -> int:
        """Exit status of the command; AssertionError with its text and stacks if it does not end."""
        try:
            return self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {timeout_s} s:\n{self._where_it_is()}") from None

    def _where_it_is(self) -> str:
        """The run's text, its processes and the stacks of those that have siirl's code."""
        folders = [run / stacks.FOLDER for run in self.folders]
        for folder in folders:
            stacks.write_here(folder)
        time.sleep(STACKS_WRITTEN_S)
        written: dict[str, str] = {}
        for file in sorted(path for folder in folders for path in folder.glob("*.txt")):
            with contextlib.suppress(FileNotFoundError):  # an ending run removes empty ones
                written[file.name] = file.read_text()
        return "\n".join(
            [
                self.text,
                *(f"{pid} {title}" for pid, title in self.processes().items()),
                *(f"{name}\n{text}" for name, text in written.items()),
            ]
        )

    def seconds_until_gone(self, *, timeout_s: float = 600.0, but: Sequence[str] = ()) -> float:
        """Seconds until no process of the run lives, except those with a title in `but`."""
        begin = time.monotonic()
        while left := {pid: title for pid, title in self.processes().items() if title not in but}:
            assert time.monotonic() - begin < timeout_s, f"still there: {left}\n{self.text}"
            time.sleep(0.05)
        return time.monotonic() - begin

    def signal_terminal(self, number: signal.Signals) -> None:
        """Acts like a terminal on Ctrl-C: the signal reaches every process of the foreground
        group.
        """
        os.killpg(self.process.pid, number)

    def kill_all(self) -> None:
        """End every process of this run with force."""
        for pid in [self.process.pid, *self.processes()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def hears_signals(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    caught = next(
        int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")
    )
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def start_ray(words: list[str], environment: dict[str, str]) -> None:
    """`ray start …`, again where a busy machine exceeds Ray's 30 seconds for a node."""
    for _ in range(5):
        started = subprocess.run(
            [RAY, *words], env=environment, capture_output=True, text=True, check=False
        )
        if TIMED_OUT not in started.stdout + started.stderr:
            break
    assert started.returncode == 0, started.stdout + started.stderr
