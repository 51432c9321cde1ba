"""vLLM's process: its own process group, and its end if the process that started it was killed.

A terminal, `timeout` or `scancel` signals a whole group, but vLLM must live until the run has saved
its weights. A killed run cannot end vLLM, which would keep its GPUs. Left out: vLLM's workers; they
belong to the group of their engine, and end with it.
"""

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.engine.core import EngineCoreProc

_run_engine_core = EngineCoreProc.run_engine_core


def run_in_own_group(*arguments: Any, **options: Any) -> None:
    """The engine's process; the arguments are vLLM's."""
    os.setpgrp()
    owner = os.pidfd_open(os.getppid())
    threading.Thread(target=_end_with, args=(owner,), name="siirl-owner", daemon=True).start()
    _run_engine_core(*arguments, **options)


def _end_with(owner: int) -> None:
    """Request the end of this process when that of the pidfd `owner` has ended."""
    select.select([owner], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def in_own_group() -> Iterator[None]:
    """Let engines that are created meanwhile run `run_in_own_group`; vLLM has no option for it."""
    EngineCoreProc.run_engine_core = staticmethod(run_in_own_group)
    try:
        yield
    finally:
        EngineCoreProc.run_engine_core = staticmethod(_run_engine_core)
