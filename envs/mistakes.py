"""Exceptions that mistakes in user code raise, and their one-line report."""

import traceback

# The standard exceptions, by their bases.
MISTAKES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)


def describe_error(error: BaseException) -> str:
    """Format an exception of user code in one line, with the source line that raised it."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"  # its text has file and line
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
