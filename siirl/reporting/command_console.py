"""rich's console, for the output of a command."""

import errno
import os
from typing import NoReturn

from rich.console import Console


class CommandConsole(Console):
    """A console whose closed output is an error, which `siirl.terminal.exit_status` handles.

    rich's own console ends the process with status 1, and a thread without a message.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error again."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
