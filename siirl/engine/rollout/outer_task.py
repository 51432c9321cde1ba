"""The task that an event loop runs until it is complete, and the code that cancelled it.

With cluster.mode=local environments share the event loop of the run. An environment that cancels
all tasks of the loop therefore cancels those of siirl. This module tells such a cancellation from
one by siirl.
"""

import asyncio
import inspect
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import siirl
from siirl.errors import RunFailed
from siirl.occupation import LIBRARY

Result = TypeVar("Result")
OWN = str(Path(siirl.__file__).parent)


class OuterTask(asyncio.Task[Result]):
    """A task that remembers which code outside of siirl cancelled it."""

    cancelled_by: str | None = None
    """Function, file and line of the first code that did."""

    def cancel(self, msg: Any | None = None) -> bool:
        """See `asyncio.Task.cancel`."""
        if self.cancelled_by is None:
            self.cancelled_by = _place(inspect.currentframe())
        return super().cancel(msg)

    def failure(self) -> RunFailed | None:
        """The error to raise for CancelledError; None if siirl cancelled the task."""
        if self.cancelled_by is None:
            return None
        return RunFailed(
            f"{self.cancelled_by} cancelled a task of the run, whose event loop it shares: let it "
            "cancel only the tasks that it created."
        )


def run(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run `coroutine` in `loop` to its end.

    Raises:
        RunFailed: Code outside of siirl cancelled it; names the code.
    """
    task = OuterTask(coroutine, loop=loop)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError as cancelled:
        raise task.failure() or cancelled from None
    finally:
        if task.done() and not task.cancelled():
            task.exception()  # marks the exception as retrieved


def _place(frame: FrameType | None) -> str | None:
    """The innermost frame outside of Python's library; None if it is siirl's."""
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        if file.startswith(OWN):
            if file != __file__:
                return None
        elif "site-packages" in file or not file.startswith((LIBRARY, "<frozen")):
            function = code.co_qualname.removesuffix(".<locals>.<listcomp>")
            return f"{function} ({file}, line {frame.f_lineno})"
        frame = frame.f_back
    return None
