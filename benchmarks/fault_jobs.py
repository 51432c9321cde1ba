"""Jobs of a few seconds for `benchmarks.fault_fuzz`, started by their command lines, and the result
of an uninterrupted run of each.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.processes import RAY_AGENTS, processes_of_session

STEPS = 6
LAST = f"step_{STEPS:08d}"
# of one command, for hangs alone: the longest takes half a minute on two idle cores, and a dead GCS
# is waited for as long
LIMIT_S = 1200.0
GONE_WITHIN_S = 60.0
RESULTS_OF_TRAINING = ("*/*.safetensors", "*/shards/*.distcp")  # weights and moments
EXPERIMENT = "fuzz"

COMMON = (
    *(
        "pipeline=grpo",
        "trainer.deterministic=true",
        f"trainer.total_steps={STEPS}",
        "trainer.max_minutes=null",
        "trainer.save_freq=1",
    ),
    *(
        "trainer.test_freq=3",
        "trainer.val_before_train=false",
        "trainer.val_episodes=1",
        "trainer.logger=[console]",
    ),
    *(
        "trainer.record_episodes=0",
        "trainer.record_val_episodes=0",
        "trainer.threads_per_rank=1",
        f"trainer.experiment_name={EXPERIMENT}",
    ),
    *(
        "data.train_batch_size=2",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    ),
    *(
        "actor_rollout_ref.actor.ppo_epochs=1",
        "actor_rollout_ref.actor.entropy_coef=0.01",
    ),  # so that weights move without a success
)
JOBS: dict[str, tuple[str, ...]] = {
    "gymnasium": (
        *("env=gymnasium", "env.id=CartPole-v1", "env.envs_per_server=4"),
        "actor_rollout_ref.model.options={chunk_length: 4, width: 16}",
    ),
    "math": ("env=math", "env.envs_per_server=16", "data.max_response_length=6"),
    "metaworld": (
        *(
            "env=metaworld",
            "env.tasks=[button-press]",
            "env.envs_per_server=4",
            "env.max_episode_steps=16",
        ),
        *("actor_rollout_ref.model.path=null", "actor_rollout_ref.model.options={width: 16}"),
    ),
    "sandbox": (
        "env=sandbox",
        "env.tasks=[numbers-2]",
        "env.envs_per_server=8",
        "data.max_response_length=16",
    ),
}


@dataclass(frozen=True)
class Job:
    """A job and its output folder."""

    name: str
    cluster: str = "local"
    ranks: int = 1
    separate: bool = False
    """Whether one rank rolls out and the other trains, in lockstep."""

    def words(self) -> tuple[str, ...]:
        """Its command line, but for the folder of its results."""
        servers = (
            f"trainer.n_gpus_per_node={self.ranks}",
            f"env.num_servers={self.ranks}",
            f"cluster={self.cluster}",
        )
        groups = ("dag.groups={rollout: 1, train: 1}",) if self.separate else ()
        return (*COMMON, *JOBS[self.name], *servers, *groups)

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return f"{self.name}, {self.cluster}, {ranks}{' in groups' if self.separate else ''}"


class Command:
    """`python -m siirl.train`, in a separate session.

    Args:
        job: What is run.
        outputs: `trainer.output_dir`.
        log: Its text.
        words: Further words of the command line.
    """

    def __init__(self, job: Job, *, outputs: Path, log: Path, words: tuple[str, ...] = ()) -> None:
        self.log, self.begun = log, time.monotonic()
        command = [
            sys.executable,
            "-m",
            "siirl.train",
            *job.words(),
            f"trainer.output_dir={outputs}",
            *words,
        ]
        with log.open("w") as text:
            self.process = subprocess.Popen(
                command, stdout=text, stderr=text, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def text(self) -> str:
        """Output of the command so far."""
        return self.log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Whether the command itself has not ended."""
        return self.process.poll() is None

    def find(self, title: str) -> list[int]:
        """Its processes with `title` in their titles, the oldest first."""
        return sorted(
            pid for pid, found in processes_of_session(self.process.pid).items() if title in found
        )

    def wait(self) -> int | None:
        """Its exit status; None where it was still running after `LIMIT_S`."""
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return None

    def left(self) -> list[str]:
        """Titles of its processes that still live after `GONE_WITHIN_S`; Ray's agents, which end by
        themselves, are left out.
        """
        deadline = time.monotonic() + GONE_WITHIN_S
        while True:
            titles = [
                title
                for title in processes_of_session(self.process.pid).values()
                if title not in RAY_AGENTS
            ]
            if not titles or time.monotonic() > deadline:
                return titles
            time.sleep(0.1)

    def kill_all(self) -> None:
        """End every process of the session with force."""
        for pid in processes_of_session(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class Reference:
    """An uninterrupted run."""

    digests: dict[str, str]
    """SHA-256 of weights and moments after the last step."""
    seconds: float


def digests_after_last_step(outputs: Path) -> list[dict[str, str]]:
    """What training came out with, of each run below `outputs` that got to its end, the earliest
    first.
    """
    found = []
    for folder in sorted(outputs.glob(f"{EXPERIMENT}/*/checkpoints/{LAST}")):
        files = json.loads((folder / "manifest.json").read_text())["files"]
        found.append(
            {
                name: entry["sha256"]
                for name, entry in files.items()
                if any(fnmatch(name, pattern) for pattern in RESULTS_OF_TRAINING)
            }
        )
    return found


class References:
    """Uninterrupted runs, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[Job, Reference] = {}

    def of(self, job: Job) -> Reference:
        """The one of a job.

        Raises:
            RuntimeError: It does not run through even without a fault.
        """
        if job not in self._made:
            outputs = self.folder / re.sub(r"\W+", "_", str(job))
            outputs.mkdir(parents=True)
            command = Command(job, outputs=outputs, log=outputs / "text")
            status, seconds = command.wait(), time.monotonic() - command.begun
            command.kill_all()
            if status != 0:
                raise RuntimeError(f"{job} ends with {status} without any fault: {command.log}")
            [digests] = digests_after_last_step(outputs)
            self._made[job] = Reference(digests=digests, seconds=seconds)
        return self._made[job]
