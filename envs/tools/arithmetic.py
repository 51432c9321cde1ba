"""A calculator, the simplest tool, for demonstrations, benchmarks and word problems."""

from envs.math.comparing.expressions import compute


def calculator(expression: str) -> str:
    """Compute an expression with whole numbers, + - * / and parentheses.

    Args:
        expression: For example (17 + 4) * 3.
    """
    value = compute(expression).value
    return str(value)
