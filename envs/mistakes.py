"""Exceptions of user code, and their one-line report."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def user_code(
    fault: Callable[[str], Exception], *, passed: type[BaseException] = KeyboardInterrupt
) -> Iterator[None]:
    """Raise `fault(description)` for anything that the block raises, except `passed` and
    interrupts.

    A user's exception may derive from BaseException, and `sys.exit(0)` would end a command
    silently.
    """
    try:
        yield
    except (KeyboardInterrupt, passed):
        raise
    except BaseException as error:
        raise fault(describe_error(error)) from error


def describe_error(error: BaseException) -> str:
    """Describe an exception of user code, with the source line that raised it."""
    described = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
    if isinstance(error, SyntaxError):
        return described  # its text has file and line
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{described} ({last.filename}, line {last.lineno})"


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
