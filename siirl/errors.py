"""Every exception that siirl raises on purpose.

One base class, and each child also inherits the standard exception that it refines, so that a
caller may catch either. What is left out: `envs` and `vjepa` know nothing of siirl and raise
standard exceptions.
"""

import difflib
from collections.abc import Iterable


class SiirlError(Exception):
    """Base of all errors that a user may meet; its message names the value, the place and the
    remedy.
    """


class ConfigError(SiirlError, ValueError):
    """A configuration that cannot work; raised before any process starts."""


class UnknownNameError(ConfigError):
    """A name that no registry knows; the message lists the known ones and proposes the nearest."""

    @classmethod
    def of(cls, *, kind: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """Build the message for `name`, which was looked up among `known` things of `kind` (for
        example "pipeline").
        """
        known = sorted(known)
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        return cls(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(known) or '(none)'}.")


class MissingAssetError(SiirlError, FileNotFoundError):
    """Weights, a clip, a library or a file that the run needs is not there; the message says how to
    get it.
    """


class CheckpointError(SiirlError, RuntimeError):
    """A checkpoint or weight file that cannot be read, or that belongs to another model."""


class RunFailed(SiirlError, RuntimeError):
    """A run that had begun and cannot go on; its notes say what it left."""


class SimulationFailed(SiirlError, RuntimeError):
    """An episode that could not be simulated, also not when it was replayed; it is counted and
    never scored.
    """


class RefusedByEnvironment(SiirlError, ValueError):
    """An environment refuses an argument, an option, a state that does not fit or an action; its
    note is the trace at the server.
    """


class TooManyFailures(SiirlError, RuntimeError):
    """More episodes failed to simulate than the run tolerates (`env.max_failed_share`)."""


class InvariantError(SiirlError, RuntimeError):
    """Something that must always hold does not (log-prob gap, weight sync, gradient reduction): the
    run stops.
    """


class TensorError(SiirlError, ValueError):
    """A tensor that a formula cannot take: a shape that does not fit, NaN or infinity, a mask that
    is not 0 or 1.
    """
