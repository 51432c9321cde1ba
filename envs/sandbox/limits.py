"""What a program may use, and what came of running it: the two data types that every sandbox
shares.
"""

import enum
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from envs.arguments import SHORTEST_DEADLINE_S, nearest

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Limits:
    """Bounds of one program. Each test starts with the full amount, but for `total_s`, which is for
    all tests of a program together.
    """

    cpu_s: int = 2
    """Seconds of processor time of one process; whole ones, as the kernel counts. What judges give
    a program in Python is 2 to 10.
    """
    wall_s: float = 10.0
    """Seconds by the clock of one test: five times `cpu_s`, so that a busy machine does not decide.
    """
    total_s: float = 30.0
    """Seconds by the clock of all tests of a program; below env.deadline_s (60), after which the
    whole server would be replaced.
    """
    memory_bytes: int = 256 * MEBIBYTE
    """Address space of one process, and resident memory of all together. Codeforces gives most
    tasks this much.
    """
    processes: int = 16
    """Processes and threads at the same time, the program itself among them; a thread's stack takes
    8 MiB of address space.
    """
    tmp_bytes: int = 16 * MEBIBYTE
    """Size of /tmp, the only place to write, and of one file."""
    files: int = 256
    """Files and folders in /tmp."""
    open_files: int = 64
    """File descriptors of one process."""
    output_bytes: int = MEBIBYTE
    """What it may print, and what it may return; more ends the program."""

    def __post_init__(self) -> None:
        # With less memory and fewer files the interpreter does not start; in less time nothing
        # answers.
        least = {
            "memory_bytes": 48 * MEBIBYTE,
            "open_files": 16,
            "wall_s": SHORTEST_DEADLINE_S,
            "total_s": SHORTEST_DEADLINE_S,
        }
        for field in fields(self):
            value, minimum = (
                getattr(self, field.name),
                least.get(field.name, 0 if field.type is float else 1),
            )
            if isinstance(value, bool) or not isinstance(
                value, field.type if field.type is int else (int, float)
            ):
                raise ValueError(
                    f"limits.{field.name} must be a number ({field.type}), got {value!r}."
                )
            if not (value >= minimum and value > 0 and value < float("inf")):
                raise ValueError(
                    f"limits.{field.name} must be at least {minimum or 'more than 0'}, and finite, got {value}."
                )

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "Limits":
        """The default limits, changed by name.

        Raises:
            ValueError: An unknown name, or a value that makes no sense.
        """
        known = [field.name for field in fields(cls)]
        for name in given or {}:
            if name not in known:
                raise ValueError(
                    f"Unknown limit {name!r}.{nearest(name, known)} Known: {', '.join(known)}."
                )
        return cls(**(given or {}))


class Ending(enum.Enum):
    """How a program ended. Only `FINISHED` can be a success, and that is for the scorer to say."""

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
    """One test that was run. Everything in here comes from the program or may be forged by it: data
    to compare, never a verdict.
    """

    ending: Ending
    exit_status: int = 0
    """As a shell has it: 0 is well, minus the signal that killed it."""
    output: bytes = b""
    """Standard output, or, where a function was called, its result as JSON; empty if it did not
    return.
    """
    errors: bytes = b""
    """The last two kilobytes of standard error, for people and prompts."""
    cpu_s: float = 0.0
    """Processor time of the main process and of its children that were waited for."""


@dataclass(frozen=True)
class Job:
    """A program and what it is to be run on."""

    program: str
    """Python source."""
    inputs: Sequence[bytes]
    """One entry a test: standard input, or, with `function`, a JSON list of arguments."""
    function: str | None = None
    """Name of what is called: `solve`, or `Solution.solve` for a method of an instance that takes
    no arguments.
    """


class SandboxFailed(RuntimeError):
    """The sandbox, not the program, failed: the program was not judged."""


class Sandbox(Protocol):
    """Where programs run."""

    def run(self, job: Job) -> AsyncGenerator[Execution, None]:
        """Run the tests one after the other; one entry a test, in order, fewer when the program
        used up its time or broke its sandbox.

        Each test has a fresh process and an empty /tmp. Closing the iterator early ends the
        program.

        Raises:
            SandboxFailed: Nothing of the program was run.
        """

    def close(self) -> None:
        """Release what is held; may be called twice."""
