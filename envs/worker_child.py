"""Child process of `envs.worker_pool`: answers calls of one function, each with a JSON line.

    python -P -m envs.worker_child module:function CPU_SECONDS MEMORY_MIB

It ends when standard input ends. The function's output is discarded, and an exception becomes an
answer. If one call uses more than CPU_SECONDS of processor time, the process ends, even if the
parent is gone; 0 means no limit.
"""

import asyncio
import inspect
import json
import math
import os
import pkgutil
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

MIB = 1 << 20


def main() -> None:
    """Serve until standard input ends."""
    target = sys.argv[1]
    cpu_s = float(sys.argv[2])
    memory_mib = int(sys.argv[3])
    requests, answers = _own_streams()
    _limit(resource.RLIMIT_CORE, 0)
    if memory_mib:
        _limit(resource.RLIMIT_AS, memory_mib * MIB)
    try:
        function = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        _send(answers, {"unavailable": f"{type(error).__name__}: {error}"})
        return
    _send(answers, {"ready": True})
    with asyncio.Runner() as runner:
        for line in requests:
            _limit_processor_time(cpu_s)
            _send(answers, runner.run(_answer(function, json.loads(line))))


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    """Returns the protocol's streams, and redirects the function's standard streams to
    /dev/null.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)
    return requests, answers


async def _answer(function: Callable[[Any], Any], argument: Any) -> dict[str, Any]:
    outcome: Any = (await asyncio.gather(_call(function, argument), return_exceptions=True))[0]
    if isinstance(outcome, KeyboardInterrupt):
        raise outcome
    if isinstance(outcome, BaseException):
        return {"raised": f"{type(outcome).__name__}: {outcome}"[:2000]}
    return {"result": outcome}


async def _call(function: Callable[[Any], Any], argument: Any) -> Any:
    result = function(argument)
    return await result if inspect.isawaitable(result) else result


def _limit_processor_time(cpu_s: float) -> None:
    if not cpu_s:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    # the kernel counts in whole seconds
    _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + cpu_s))


def _limit(kind: int, value: int) -> None:
    """Sets a soft limit, up to the inherited hard limit."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _send(answers: BinaryIO, answer: dict[str, Any]) -> None:
    try:
        line = json.dumps(answer)
    except (TypeError, ValueError) as error:
        line = json.dumps({"raised": f"the result is not JSON: {error}"})
    answers.write(line.encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the parent reports it; a traceback would precede its sentence
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
