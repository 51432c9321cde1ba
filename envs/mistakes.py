"""Exceptions of user code, and their one-line report."""

import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("siirl", "envs", "vjepa", "pipelines")  # of siirl
# code that a user calls: Python's and installed libraries, and siirl's packages in a checkout
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    *(str(ROOT / package) for package in PACKAGES),
)
_NO_USERS = (
    *(os.path.join(folder, "") for folder in _LIBRARIES),
    "<",  # for example <frozen importlib._bootstrap>
)


def is_user_frame(filename: str) -> bool:
    """Whether a frame of this file is a user's: not of Python, an installed library or siirl."""
    # Cython's frames have relative paths, for example uvloop/loop.pyx below Ray's actors
    return not filename.startswith(_NO_USERS) and not filename.endswith(".pyx")


def users_frame(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary:
    """The innermost frame of a user; the innermost of all if none is a user's."""
    own = [frame for frame in frames if is_user_frame(frame.filename)]
    return (own or frames)[-1]


class UsersError(Exception):
    """Stands for an error of user code in another process; its text is the report. The error itself
    would lose its traceback on the way, and may not be picklable.
    """


def users_report(error: Exception) -> str | None:
    """Traceback of an error from the first frame of a user on; None if no user code ran."""
    if isinstance(error, UsersError):
        return "\n".join([str(error), *getattr(error, "__notes__", ())])
    trace = error.__traceback__
    while trace is not None and not is_user_frame(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    if trace is None:
        return None
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


@contextmanager
def user_code(
    fault: Callable[[str], Exception],
    *,
    passed: type[BaseException] | tuple[type[BaseException], ...] = (),
) -> Iterator[None]:
    """Raise `fault(description)` for anything that the block raises, except `passed` and
    interrupts.

    A user's exception may derive from BaseException, and `sys.exit(0)` would end a command
    silently.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except passed:
        raise
    except BaseException as error:
        raise fault(describe_error(error)) from error


def describe_error(error: BaseException) -> str:
    """Describe an exception of user code, with the line of its own that raised it or called the
    library that did.
    """
    described = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
    if isinstance(error, SyntaxError):
        return described  # its text has file and line
    last = users_frame(traceback.extract_tb(error.__traceback__))
    return f"{described} ({last.filename}, line {last.lineno})"


def place_of(code: Any) -> str:
    """` (file, line)` of the definition of a user's class or function; empty without a file."""
    try:
        return f" ({inspect.getsourcefile(code)}, line {inspect.getsourcelines(code)[1]})"
    except (OSError, TypeError):  # typed in at a prompt, or built in
        return ""


def refused_call(method: Callable[..., Any], *arguments: Any, **named: Any) -> str | None:
    """Why `method` cannot be called with these arguments, with the place of its definition; None if
    it can.
    """
    try:
        inspect.signature(method).bind(*arguments, **named)
    except TypeError as error:
        name = getattr(method, "__qualname__", method)
        return f"{name} {error}{place_of(method)}"
    except ValueError:  # written in C: it has no signature
        return None
    return None


def describe_exit(error: SystemExit) -> str:
    """Describe a call of `sys.exit` in user code, with the remedy; for the end of a sentence."""
    return f"sys.exit({error.code!r}): raise an error that gives the reason instead"


def text_of(error: BaseException, *, most: int = 2000) -> str:
    """The first `most` characters of the error's message, as one line; in user code it may raise,
    be long, or have several.
    """
    text = str(traceback.TracebackException(type(error), error, None))  # reads it in any case
    text = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return text if len(text) <= most else f"{text[:most]}…"


def one_line(error: BaseException, *, most: int = 160) -> str:
    """The first `most` visible characters of the error's message, or its type if it has none.

    Libraries quote what a server sent, including line ends and control characters.
    """
    visible = "".join(letter if letter.isprintable() else " " for letter in str(error))
    return " ".join(visible.split()).rstrip(".")[:most] or type(error).__name__
