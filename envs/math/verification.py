r"""Whether two answers are the same mathematics: LaTeX and expressions, read and compared by
math-verify (on sympy).

Runs in a worker process (`envs.worker_pool`), because neither reading nor comparing is bounded:
`9^{9^{9^9}}` keeps one integer power busy for longer than anyone waits. math-verify's own limits
are off: they use `signal.alarm`, and turn a timeout into "different".
"""

import re
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

PERCENTAGE = re.compile(r"[+-]?[0-9][0-9,]*(\.[0-9]+)? ?\\?%")


def equivalent(pair: dict[str, str]) -> bool:
    """Whether `pair["answer"]` is `pair["truth"]`; an answer that cannot be read is not.

    Raises:
        ValueError: The truth cannot be read, not even as text.
        Exception: Whatever sympy raises while it compares; nothing is known of the answer then.
    """
    truth = _read(pair["truth"])
    if not truth:
        raise ValueError(f"the ground truth {pair['truth']!r} cannot be read")
    return bool(verify(truth, _read(pair["answer"]), timeout_seconds=None, raise_on_error=True))


def _read(text: str) -> list[Any]:
    r"""What math-verify makes of `text`: an expression and the text itself, only the text, or
    nothing.
    """
    text = " ".join(text.replace("$", " ").split())
    if PERCENTAGE.fullmatch(text):
        return list(
            parse(
                text.replace("\\", ""),
                extraction_config=[ExprExtractionConfig()],
                parsing_timeout=None,
            )
        )
    return list(
        parse(f"${text}$", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
    )
