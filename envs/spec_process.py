"""Reads the spec of a user-defined environment in a child process.

A user's constructor may exit, hang or crash; the child process turns that into an error message.
Its standard output is discarded, and its process group ends with it. The child runs
`envs.spec_child`. Left out: specs of shipped environments, which are made in the caller's process.
"""

import base64
import logging
import pickle
import threading
import zlib
from collections.abc import Collection, Mapping
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
PATIENCE_S = 10.0  # before a message reports the wait
SHIPPED = "envs."  # package of the shipped environments
REMEDY = "Test it alone with envs.checker.check_env; move slow or fragile work into reset."


class SpecUnknown(RuntimeError):
    """The environment could not be constructed or has no spec; the message gives the reason."""


FAILURES: dict[str, type[Exception]] = {
    "refused": ValueError,
    "lacks": RuntimeError,
    "raised": SpecUnknown,
}
"""The child's failure code, and the exception that the caller raises for it."""


def user_env_spec(
    name: str, *, reference: str, kwargs: Mapping[str, Any], streams: Collection[str] = ()
) -> EnvSpec:
    """Return the spec of the environment that `make_env(name, **kwargs)` would make.

    Args:
        name: Registry name, or `module:Class`.
        reference: `module:Class`, because the child's registry may lack the name.
        kwargs: Constructor arguments; picklable.
        streams: Frames that the job will request; see `Environment.check_drawing`.

    Raises:
        ValueError: Constructor arguments that `make_env` refuses.
        RuntimeError: A shipped class lacks a package or a library.
        SpecUnknown: The constructor raised something else, ended its process or took too long.
    """
    asked = (name, reference, pickle.dumps(dict(kwargs)))
    if streams or asked not in _specs:
        _specs[asked] = _pickled_spec(*asked, streams=streams)
    try:
        spec = pickle.loads(_specs[asked])
    except Exception as error:  # unpickling runs user code, which may raise anything
        raise _something_else(name, describe_error(error)) from error
    if not isinstance(spec, EnvSpec):
        raise _something_else(name, f"an object of type {type(spec).__name__}")
    spec.check()
    return spec


_specs: dict[tuple[str, str, bytes], bytes] = {}
"""Pickled specs by name, reference and arguments: a command checks, plans and starts with the same
environment."""


def _pickled_spec(name: str, reference: str, kwargs: bytes, *, streams: Collection[str]) -> bytes:
    settings = WorkerSettings(
        "envs.spec_child:describe",
        num_workers=1,
        deadline_s=DEADLINE_S,
        excludes_waits=True,
        shows_errors=True,
    )
    pool = WorkerPool(settings)
    waits = (
        "Waiting for the constructor of %s, for at most %g s. Waits for a core do not count.",
        name,
        DEADLINE_S,
    )
    notice = threading.Timer(PATIENCE_S, logger.warning, waits)
    notice.daemon = True
    notice.start()
    try:
        answer = pool.call_blocking(
            {
                "name": name,
                "reference": reference,
                "kwargs": base64.b64encode(kwargs).decode(),
                "streams": list(streams),
            }
        )
    except WorkerKilled as end:
        raise SpecUnknown(f"constructing it in a child process failed: {end}. {REMEDY}") from end
    except WorkerRaised as error:
        raise _something_else(name, str(error)) from error
    except WorkerUnavailable as error:
        raise SpecUnknown(
            f"no child process for constructing it could be started: {error}"
        ) from error
    finally:
        notice.cancel()
        pool.close()
    return _read(answer, name=name)


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


def _something_else(name: str, found: str) -> SpecUnknown:
    return SpecUnknown(
        f"the process that read the spec of {name!r} returned something else ({found}). "
        f"A constructor must not write to file descriptors that it did not open. {REMEDY}"
    )
