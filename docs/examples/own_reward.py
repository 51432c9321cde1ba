"""A reward of your own for a language model; no file of siirl changes.

    siirl train pipeline=grpo env=math custom_reward_function.name=own_reward:short_and_right

It is called with keyword arguments, once per sample, in separate processes. It returns a number, or
a dict with `score`, whose other numbers are logged, as `reward/part/short_and_right.characters`.
"""

from typing import Any


def short_and_right(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]
) -> dict[str, float]:
    """1 for the right answer, less a hundredth for each character."""
    is_right = solution_str.strip() == ground_truth
    return {
        "score": float(is_right) - 0.01 * len(solution_str),
        "characters": float(len(solution_str)),
    }
