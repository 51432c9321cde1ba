"""Limits, jobs and results: the data types that all sandboxes share."""

import enum
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from envs.archives import MEBIBYTE
from envs.deadlines import SHORTEST_DEADLINE_S
from envs.names import listed, nearest


@dataclass(frozen=True)
class Limits:
    """Limits of one program; each test has the full amount, except `total_s`."""

    cpu_s: int = 2
    """Processor time of one process, in whole seconds as the kernel counts. Judges give a Python
    program 2 to 10.
    """
    wall_s: float = 10.0
    """Wall time of one test in seconds: five times `cpu_s`, so that a busy machine does not matter.
    """
    total_s: float = 30.0
    """Wall time of all tests of a program in seconds; below env.deadline_s (60), after which the
    whole server is replaced.
    """
    memory_bytes: int = 256 * MEBIBYTE
    """Address space of one process, and resident memory of all processes. Codeforces' usual limit.
    """
    processes: int = 16
    """Concurrent processes and threads, including the program; a thread's stack takes 8 MiB of
    address space.
    """
    tmp_bytes: int = 16 * MEBIBYTE
    """Size of /tmp, the only writable place, and of one file."""
    files: int = 256
    """Files and folders in /tmp."""
    open_files: int = 64
    """File descriptors of one process."""
    output_bytes: int = MEBIBYTE
    """Limit of the bytes that a test prints, and of those that it returns; more ends the
    program."""

    def __post_init__(self) -> None:
        # With less memory or fewer files the interpreter does not start; in less time no program
        # answers.
        least = {
            "memory_bytes": 48 * MEBIBYTE,
            "open_files": 16,
            "wall_s": SHORTEST_DEADLINE_S,
            "total_s": SHORTEST_DEADLINE_S,
        }
        for field in fields(self):
            value = getattr(self, field.name)
            minimum = least.get(field.name, 0 if field.type is float else 1)
            if isinstance(value, bool) or not isinstance(
                value, field.type if field.type is int else (int, float)
            ):
                raise ValueError(
                    f"limits.{field.name} must be a number ({field.type}), got {value!r}."
                )
            if not (value >= minimum and value > 0 and value < float("inf")):
                raise ValueError(
                    f"limits.{field.name} must be at least {minimum or 'more than 0'}, "
                    f"and finite, got {value}."
                )

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "Limits":
        """Return the default limits with overrides by name.

        Raises:
            ValueError: An unknown name or an invalid value.
        """
        known = [field.name for field in fields(cls)]
        for name in given or {}:
            if name not in known:
                raise ValueError(
                    f"Unknown limit {name!r}.{nearest(name, known)} Known: {listed(name, known)}."
                )
        return cls(**(given or {}))


class Ending(enum.Enum):
    """How a test ended. Only `FINISHED` can be a success, which the scorer decides."""

    FINISHED = "finished"
    CPU_TIME = "out of processor time"
    WALL_TIME = "out of time"
    OUTPUT = "too much output"
    FILES = "too many files"
    MEMORY = "out of memory"
    PROCESSES = "too many processes"
    KILLED = "its sandbox broke down"


@dataclass(frozen=True)
class Execution:
    """Result of one test. It is data and never a verdict, because the program may forge all of
    it.
    """

    ending: Ending
    exit_status: int = 0
    """0 for success, or the negative number of the signal that killed it."""
    output: bytes = b""
    """Standard output, or a called function's result as JSON; empty if it did not return."""
    errors: bytes = b""
    """Last two kilobytes of standard error, for people and prompts."""
    cpu_s: float = 0.0
    """Processor time in seconds of the main process and its reaped children."""


@dataclass(frozen=True)
class ProgramRun:
    """A program and its inputs."""

    program: str
    """Python source."""
    inputs: Sequence[bytes]
    """One entry per test: standard input, or, with `function`, a JSON list of arguments."""
    function: str | None = None
    """Function to call: `solve`, or `Solution.solve` for a method; the class is constructed without
    arguments.
    """


class SandboxFailed(RuntimeError):
    """The sandbox failed, not the program; the program was not judged."""


class Sandbox(Protocol):
    """Runs programs."""

    def run(self, job: ProgramRun) -> AsyncGenerator[Execution, None]:
        """Run the tests in order; yields one entry per test.

        There are fewer entries if the program used up its time or broke its sandbox. Each test has
        a fresh process and an empty /tmp. Closing the iterator early ends the program.

        Raises:
            SandboxFailed: The program was not run.
        """

    def close(self) -> None:
        """Release resources; a second call does nothing."""
