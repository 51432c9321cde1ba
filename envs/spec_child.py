"""Child process of `envs.spec_process`: makes an environment, returns its spec or an error, and
then plays its first step if asked.
"""

import asyncio
import base64
import pickle
import zlib
from collections.abc import Collection, Mapping
from typing import Any

from envs.base import Environment, EnvSpec, Misbehaved
from envs.mistakes import describe_error, place_of
from envs.registry import ENVS, is_known, make_env
from envs.spec_process import SHIPPED
from envs.trial import try_first_step

_MADE: list[Environment] = []


async def answer(argument: Mapping[str, Any]) -> dict[str, str]:
    """See `describe`, and `try_first_step` for `{"trial": reference}`."""
    if "trial" not in argument:
        return await describe(argument)
    environment = _MADE.pop()
    if is_known(argument["trial"], environment):
        return {"warning": ""}
    try:
        return {"warning": await try_first_step(environment)}
    except Misbehaved as fault:
        return {"failure": "raised", "message": str(fault)}


async def describe(argument: Mapping[str, Any]) -> dict[str, str]:
    """Return the pickled, compressed spec or a failure code of `envs.spec_process.FAILURES`.

    See `user_env_spec` for the argument.
    """
    made = _made(
        argument["name"],
        argument["reference"],
        pickle.loads(base64.b64decode(argument["kwargs"])),
        argument["streams"],
    )
    outcome: Any = (await asyncio.gather(made, return_exceptions=True))[0]
    if isinstance(outcome, bytes):
        return {"spec": base64.b64encode(outcome).decode()}
    if isinstance(outcome, ValueError):
        return {"failure": "refused", "message": str(outcome)}
    if isinstance(outcome, RuntimeError | ImportError) and argument["reference"].startswith(
        SHIPPED
    ):
        return {"failure": "lacks", "message": str(outcome)}
    return {"failure": "raised", "message": f"making it raised {describe_error(outcome)}."}


async def _made(
    name: str, reference: str, kwargs: dict[str, Any], streams: Collection[str]
) -> bytes | KeyboardInterrupt:
    ENVS.setdefault(name, reference)
    try:
        environment = make_env(name, **kwargs)
        environment.check_drawing(streams)
        spec = getattr(environment, "spec", None)
    except KeyboardInterrupt as raised:  # by its constructor; it would end the event loop
        return raised
    if not isinstance(spec, EnvSpec):
        found = "no spec" if spec is None else f"a spec of type {type(spec).__name__}"
        raise ValueError(
            f"Environment {name!r} has {found}{place_of(type(environment))}: set self.spec in "
            "__init__; it must be an envs.base.EnvSpec."
        )
    _MADE.append(environment)
    # bounds of a Box are arrays, which almost always repeat one number
    return zlib.compress(pickle.dumps(spec), level=1)
