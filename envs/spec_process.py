"""Reads the spec of a user-defined environment in a child process.

A user's constructor may exit, hang or crash; the child process turns that into an error message.
Its standard output is discarded, and its process group ends with it. The child runs
`envs.spec_child`, and plays a first step if a job will follow (`envs.trial`). Left out: specs of
shipped environments, which are made in the caller's process.
"""

import base64
import contextlib
import logging
import pickle
import threading
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from envs.base import EnvSpec
from envs.mistakes import describe_error
from envs.text import shortened
from envs.worker_pool import (
    WorkerKilled,
    WorkerPool,
    WorkerRaised,
    WorkerSettings,
    WorkerUnavailable,
)

logger = logging.getLogger(__name__)

# Imports from a cold disk take a minute; simulators are built at the first reset, not here. Waits
# for a core do not count, because a loaded machine must not refuse a working environment.
DEADLINE_S = 120.0
TRIAL_DEADLINE_S = 60.0  # of a first reset, which may build a simulator, and a step
PATIENCE_S = 10.0  # before a message reports the wait
SHIPPED = "envs."  # package of the shipped environments
GYMNASIUM = "envs.gymnasium:"  # module of the adapter of Gymnasium environments
TEST_ALONE = "Test it alone with envs.checker.check_env"
REMEDY = f"{TEST_ALONE}; move slow or fragile work into reset."
AS_ADAPTED = "That includes the first reset and step of the Gymnasium environment."


class SpecUnknown(RuntimeError):
    """The environment could not be constructed or has no spec; the message gives the reason."""


FAILURES: dict[str, type[Exception]] = {
    "refused": ValueError,
    "lacks": RuntimeError,
    "raised": SpecUnknown,
}
"""The child's failure code, and the exception that the caller raises for it."""


def user_env_spec(
    name: str,
    *,
    reference: str,
    kwargs: Mapping[str, Any],
    streams: Collection[str] = (),
    trial: bool = False,
) -> EnvSpec:
    """Return the spec of the environment that `make_env(name, **kwargs)` would make.

    Args:
        name: Registry name, or `module:Class`.
        reference: `module:Class`, because the child's registry may lack the name.
        kwargs: Constructor arguments; picklable.
        streams: Frames that the job will request; see `Environment.check_drawing`.
        trial: Whether the environment plays its first step; see `envs.trial`.

    Raises:
        ValueError: Constructor arguments that `make_env` refuses.
        RuntimeError: A shipped class lacks a package or a library.
        SpecUnknown: The constructor raised something else, ended its process or took too long; or
            the first step violates the contract.
    """
    asked = (name, reference, pickle.dumps(dict(kwargs)))
    if streams or trial or asked not in _specs:
        id = kwargs.get("id") if reference.startswith(SHIPPED) else None  # a user's is no name
        _specs[asked] = _pickled_spec(*asked, streams=streams, trial=trial, id=id)
    return _unpickled(_specs[asked], name=name)


_specs: dict[tuple[str, str, bytes], bytes] = {}
"""Pickled specs by name, reference and arguments: a command checks, plans and starts with the same
environment."""


def _pickled_spec(
    name: str,
    reference: str,
    kwargs: bytes,
    *,
    streams: Collection[str],
    trial: bool,
    id: str | None,
) -> bytes:
    settings = WorkerSettings(
        "envs.spec_child:answer",
        num_workers=1,
        deadline_s=DEADLINE_S,
        excludes_waits=True,
        shows_errors=True,
    )
    pool = WorkerPool(settings)
    asked = {
        "name": name,
        "reference": reference,
        "kwargs": base64.b64encode(kwargs).decode(),
        "streams": list(streams),
    }
    try:
        with _noticed("the constructor", name, DEADLINE_S):
            answer = pool.call_blocking(asked)
        spec = _read(answer, name=name)
        if trial:
            _unpickled(spec, name=name)  # only with a valid spec can a step be played
            _try(pool, name, reference, id=id)
        return spec
    except WorkerKilled as end:
        # the adapter of a Gymnasium environment resets and steps it once to read its spec
        did = f"{AS_ADAPTED} {TEST_ALONE}." if reference.startswith(GYMNASIUM) else REMEDY
        raise SpecUnknown(f"constructing it in a child process failed: {end}. {did}") from end
    except WorkerRaised as error:
        raise _something_else(name, str(error)) from error
    except WorkerUnavailable as error:
        raise SpecUnknown(
            f"no child process for constructing it could be started: {error}"
        ) from error
    finally:
        pool.close()


def _try(pool: WorkerPool, name: str, reference: str, *, id: str | None) -> None:
    """Let the environment that the child has made play its first step."""
    try:
        with _noticed("the first reset and step", name, TRIAL_DEADLINE_S):
            answer = pool.call_blocking({"trial": reference}, deadline_s=TRIAL_DEADLINE_S)
    except WorkerKilled as end:
        if not end.is_late:
            raise SpecUnknown(
                f"its first reset and step ended their process: {end}. {TEST_ALONE}."
            ) from end
        slow = (
            f"its first reset and step took more than {TRIAL_DEADLINE_S:g} s, so they were not "
            "checked before the run."
        )
        warn_of(slow, name=name, id=id)
        return
    match answer:
        case {"warning": str(warning)}:
            warn_of(warning, name=name, id=id)
        case {"failure": "raised", "message": str(message)}:
            raise SpecUnknown(message)
        case _:
            raise _something_else(name, shortened(answer))


def warn_of(warning: str, *, name: str, id: str | None) -> None:
    """Warn of what `envs.trial.try_first_step` found, unless it is empty; `id` is `env.id`."""
    if warning:
        place = f"env.name={name}" if id is None else f"env.id={id}"
        warnings.warn(f"{place}: {warning}", stacklevel=2)


@contextlib.contextmanager
def _noticed(what: str, name: str, deadline_s: float) -> Iterator[None]:
    """Log that a call takes long, after `PATIENCE_S`."""
    waits = (
        "Waiting for %s of %s, for at most %g s. Waits for a core do not count.",
        *(what, name, deadline_s),
    )
    notice = threading.Timer(PATIENCE_S, logger.warning, waits)
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


def _read(answer: Any, *, name: str) -> bytes:
    """Returns the pickled spec; checks that the constructor has not written to the pipe."""
    match answer:
        case {"spec": str(encoded)}:
            try:
                return zlib.decompress(base64.b64decode(encoded, validate=True))
            except (ValueError, zlib.error) as error:
                raise _something_else(name, str(error)) from error
        case {"failure": str(failure), "message": str(message)} if failure in FAILURES:
            raise FAILURES[failure](message)
    raise _something_else(name, shortened(answer))


def _unpickled(pickled: bytes, *, name: str) -> EnvSpec:
    try:
        spec = pickle.loads(pickled)
    except Exception as error:  # unpickling runs user code, which may raise anything
        raise _something_else(name, describe_error(error)) from error
    if not isinstance(spec, EnvSpec):
        raise _something_else(name, f"an object of type {type(spec).__name__}")
    spec.check()
    return spec


def _something_else(name: str, found: str) -> SpecUnknown:
    return SpecUnknown(
        f"the process that read the spec of {name!r} returned something else ({found}). "
        f"A constructor must not write to file descriptors that it did not open. {REMEDY}"
    )
