"""Prints the output of a run's Ray processes, in place of Ray.

Ray would begin each line with `(_Rank pid=4711)`, and explain how it counts repeated lines. Here
rank 0's lines are unchanged, lines of other processes begin with their name, and a line that
several processes write is printed once.
"""

import functools
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from ray._private import ray_constants
from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

from siirl.terminal.printable import printable
from siirl.terminal.terminal_lines import fitted

RAYS_PRINTER, OWN_PRINTER = "ray_print_logs", "siirl"
REMEMBERED_LINES = 1000  # for these the first writer is known; bounds the memory of a long run
FIRST_RANK = "rank 0"


@contextmanager
def printed() -> Iterator[None]:
    """Print the output of the connected cluster's processes until the context ends."""
    dispatcher.remove_handler(RAYS_PRINTER)
    dispatcher.add_handler(OWN_PRINTER, functools.partial(show, lines=Lines()))
    try:
        yield
    finally:
        dispatcher.remove_handler(OWN_PRINTER)


def show(data: Mapping[str, Any], *, lines: "Lines") -> None:
    """Print a message of Ray's log monitor: lines of one process."""
    stream = sys.stderr if data["is_err"] else sys.stdout
    for line in lines.of(data):
        print(_for(stream, line), file=stream, flush=True)


def _for(stream: TextIO, line: str) -> str:
    """Messages are folded at a terminal's width; a program's output stays as it is."""
    return fitted(printable(line), stream) if stream is sys.stderr else line


class Lines:
    """The lines to print, and which process was the first to write each."""

    def __init__(self) -> None:
        self._first: OrderedDict[str, object] = OrderedDict()

    def of(self, data: Mapping[str, Any]) -> Iterator[str]:
        """Lines of a message without those that another process wrote before."""
        process = (data["ip"], data["pid"])
        for line in _own_lines(data):
            if line.strip() and self._first.setdefault(line, process) != process:
                continue
            if len(self._first) > REMEMBERED_LINES:
                self._first.popitem(last=False)
            yield _named(line, data)


def _own_lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Lines without Ray's markers; from the autoscaler, which writes a log, only the events."""
    event, message = (
        ray_constants.LOG_PREFIX_EVENT_SUMMARY,
        ray_constants.LOG_PREFIX_INFO_MESSAGE,
    )
    for line in data["lines"]:
        if data["pid"] != "autoscaler" or event in line:
            yield line.rpartition(event)[2].rpartition(message)[2]


def _named(line: str, data: Mapping[str, Any]) -> str:
    name = data.get("actor_name") or data.get("task_name") or "Ray"
    if name == FIRST_RANK or not line.strip():
        return line
    place = "" if data["ip"] == data["localhost"] else f" on {data['ip']}"
    return f"{name.lstrip('_')}{place}: {line}"
