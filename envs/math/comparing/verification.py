r"""Decides whether two answers are the same mathematics: math-verify (on sympy) reads and compares
LaTeX and expressions.

Runs in a worker process (`envs.worker_pool`), because reading and comparing are unbounded: a
single integer power such as `9^{9^{9^9}}` never ends in practice. math-verify's own limits are off:
they use `signal.alarm`, and turn a timeout into "different".
"""

import re
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

PERCENTAGE = re.compile(r"[+-]?[0-9][0-9,]*(\.[0-9]+)? ?\\?%")


def equivalent(pair: dict[str, Any]) -> bool:
    """Whether `pair["answer"]` is `pair["truth"]`; an answer that cannot be read is not.

    Raises:
        ValueError: The truth cannot be read, not even as text.
        Exception: Any error of sympy during the comparison; the answer is then ungraded.
    """
    truth = _read(pair["truth"])
    if not truth:
        raise ValueError(f"the ground truth {pair['truth']!r} cannot be read")
    return bool(
        verify(
            truth,
            _read(pair["answer"]),
            float_rounding=pair["places"],
            timeout_seconds=None,
            raise_on_error=True,
        )
    )


def _read(text: str) -> list[Any]:
    r"""math-verify's reading of `text`: an expression and the text itself, only the text, or
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
