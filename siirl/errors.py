"""All exceptions that siirl raises on purpose.

They share one base class. Each also inherits the standard exception that it refines, so that
callers may catch either. Left out: `envs` and `vjepa` do not import siirl and raise standard
exceptions.
"""

from collections.abc import Iterable, Sequence


class SiirlError(Exception):
    """Base of all user-facing errors; the message has the value, the place and the remedy."""


class ConfigError(SiirlError, ValueError):
    """A configuration that cannot work; raised before any process starts."""


class UnknownNameError(ConfigError):
    """A name that no registry has; the message suggests the nearest known name and lists others."""

    @classmethod
    def of(cls, *, kind: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """Build the message for `name`, looked up among `known` names of `kind` ("pipeline")."""
        from envs.names import listed, nearest  # siirl.commands checks first whose `envs` it is

        known = sorted(known)
        return cls(f"Unknown {kind} {name!r}.{nearest(name, known)} Known: {listed(name, known)}.")


class MissingAssetError(SiirlError, FileNotFoundError):
    """A required file, library, clip or weight file is missing; the message says how to get it."""


class CheckpointError(SiirlError, RuntimeError):
    """A checkpoint or weight file that is unreadable or belongs to another model."""


class RunFailed(SiirlError, RuntimeError):
    """A started run that failed; its notes list the files that it left."""


class EngineDied(RunFailed):
    """The process of a rollout engine ended. A rank that only rolls out is replaced."""


class SimulationFailed(SiirlError, RuntimeError):
    """An episode failed to simulate, including its replays; it is counted and never scored."""

    cause = ""
    """The reason without the words that name the episode; empty: the message has no others."""
    culprit = ""
    """`cause` with the fault of the environment first and a traceback last; empty: the message."""
    episode = ""
    """Seed and options of the episode; empty: the message names them."""


class RefusedByEnvironment(SiirlError, ValueError):
    """An environment refused an argument, option, state or action; the exception's note is the
    trace.
    """


class TooManyFailures(SiirlError, RuntimeError):
    """More episodes failed to simulate than `env.max_failed_share` permits."""


class InvariantError(SiirlError, RuntimeError):
    """A violated invariant (log-prob gap, weight sync, gradient reduction); the run stops."""


class TensorError(SiirlError, ValueError):
    """An invalid tensor: wrong shape, NaN or infinity, or a mask with values other than 0 and 1."""


REFUSALS = (ConfigError, MissingAssetError, CheckpointError)
"""Errors raised before a run starts; changing the job remedies them."""


def refuse(problems: Sequence[SiirlError]) -> None:
    """Raise a single error itself, or several as one ConfigError that lists them; return if there
    is none.
    """
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, start=1))
    raise ConfigError(f"{len(problems)} problems:\n{lines}")
