"""Exceptions that a mistake in a user's code raises, and their one-line description."""

import traceback

# The standard exceptions, by their base classes.
MISTAKES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)


def describe_error(error: BaseException) -> str:
    """An exception of a user's code in one line, with the line of code that raised it."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"  # says where by itself
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
