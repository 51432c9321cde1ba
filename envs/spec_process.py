"""The spec of a user's own environment, read in a process of its own.

A constructor may end its process, hang or crash: here that costs a process and becomes a sentence.
What it prints to its standard output goes nowhere, and processes of its process group end with it.
The child runs `envs.spec_child`. Left out: the specs of shipped environments, whose constructors
are known.
"""

import base64
import functools
import logging
import pickle
import threading
from collections.abc import Mapping
from typing import Any

from envs.base import EnvSpec
from envs.mistakes import MISTAKES, describe_error
from envs.text import shortened
from envs.worker_pool import (
    WorkerKilled,
    WorkerPool,
    WorkerRaised,
    WorkerSettings,
    WorkerUnavailable,
)

logger = logging.getLogger(__name__)

# imports from a cold disk take a minute; a simulator is built at the first reset, and not here
DEADLINE_S = 120.0
PATIENCE_S = 10.0  # after which a user wants to know what is waited for
SHIPPED = "envs."  # the package of environments whose constructors are known
REMEDY = (
    "Try it by itself with envs.checker.check_env; what takes long or may crash belongs into reset."
)


class SpecUnknown(RuntimeError):
    """An environment's class could not be made, or has no spec; the message says what became of it."""


FAILURES: dict[str, type[Exception]] = {
    "refused": ValueError,
    "lacks": RuntimeError,
    "raised": SpecUnknown,
}
"""What the child calls a failure, and what it is here."""


def spec_of_own(name: str, *, reference: str, kwargs: Mapping[str, Any]) -> EnvSpec:
    """The spec of the environment that `envs.registry.make_env(name, **kwargs)` would make.

    Args:
        name: Its name, or `module:Class`.
        reference: `module:Class`; the process's registry may not have the name.
        kwargs: Of the constructor; picklable.

    Raises:
        ValueError: As `make_env`.
        RuntimeError: A shipped class lacks a package or a library.
        SpecUnknown: The constructor raised something else, ended its process or took too long.
    """
    pickled = _pickled_spec(name, reference, pickle.dumps(dict(kwargs)))
    try:
        spec = pickle.loads(pickled)
    except (*MISTAKES, pickle.UnpicklingError, EOFError) as error:
        raise _something_else(name, describe_error(error)) from error
    if not isinstance(spec, EnvSpec):
        raise _something_else(name, f"an object of type {type(spec).__name__}")
    spec.check()
    return spec


@functools.lru_cache
def _pickled_spec(name: str, reference: str, kwargs: bytes) -> bytes:
    """Asked once in a process: a command checks, plans and starts with the same environment."""
    settings = WorkerSettings(
        "envs.spec_child:describe", num_workers=1, deadline_s=DEADLINE_S, shows_errors=True
    )
    pool = WorkerPool(settings)
    waits = ("Waiting for the constructor of %s, for at most %g s.", name, DEADLINE_S)
    notice = threading.Timer(PATIENCE_S, logger.warning, waits)
    notice.daemon = True
    notice.start()
    try:
        answer = pool.call_blocking(
            {"name": name, "reference": reference, "kwargs": base64.b64encode(kwargs).decode()}
        )
    except WorkerKilled as end:
        raise SpecUnknown(
            f"making it, in a process of its own, went wrong: {end}. {REMEDY}"
        ) from end
    except WorkerRaised as error:
        raise _something_else(name, str(error)) from error
    except WorkerUnavailable as error:
        raise SpecUnknown(f"a process to make it in could not be had: {error}") from error
    finally:
        notice.cancel()
        pool.close()
    return _read(answer, name=name)


def _read(answer: Any, *, name: str) -> bytes:
    """The pickled spec of an answer; the constructor may have written to the pipe that it comes
    through.
    """
    match answer:
        case {"spec": str(encoded)}:
            try:
                return base64.b64decode(encoded, validate=True)
            except ValueError as error:
                raise _something_else(name, str(error)) from error
        case {"failure": str(failure), "message": str(message)} if failure in FAILURES:
            raise FAILURES[failure](message)
    raise _something_else(name, shortened(answer))


def _something_else(name: str, found: str) -> SpecUnknown:
    return SpecUnknown(
        f"the process that read the spec of {name!r} answered with something else ({found}). A constructor must not "
        f"write to file descriptors that it did not open. {REMEDY}"
    )
