"""Rows without a grade: refused if the reward is the environment's grade, otherwise used without
success.

An environment grades an answer by its row's ground truth. It cannot grade rows without ground truth
or with a style that needs a judge. A run with a custom reward function still uses such rows; their
success stays unknown.
"""

import inspect
from collections.abc import Iterator

from envs.base import EnvSpec
from envs.registry import shipped_class
from siirl.errors import ConfigError, SiirlError
from siirl.params.algorithm_args import FilterArguments
from siirl.params.reward_args import CustomRewardArguments, RewardArguments
from siirl.params.training_args import SiiRLArguments

GRADES = ("success", "return")
"""Rewards of text that are the environment's own grade."""
UNGRADED = "ungraded"
"""Argument of a shipped environment; for a user's environment, set env.kwargs."""


def grade_of_every_row(reward: RewardArguments, custom: CustomRewardArguments) -> str | None:
    """Key of a reward part that is the environment's grade of every row; None without one."""
    parts = [
        (f"reward.functions[{number}].name", part) for number, part in enumerate(reward.functions)
    ]
    if custom.name is not None:
        parts.append(("custom_reward_function.name", {"name": custom.name}))
    for place, part in parts or [("reward.name", {"name": reward.name})]:
        if part.get("name") in GRADES and not part.get("data_sources"):
            return f"{place}={part['name']}"
    return None


def ask_ungraded_rows(config: SiiRLArguments) -> None:
    """Set `env.kwargs.ungraded` by default if rows are from files and the reward needs no grade."""
    kwargs = config.env.kwargs
    from_files = bool(config.data.train_files or kwargs.get("files"))
    if (
        from_files
        and UNGRADED not in kwargs
        and grade_of_every_row(config.reward, config.custom_reward_function) is None
        and (shipped := shipped_class(config.env.name)) is not None
        and UNGRADED in inspect.signature(shipped).parameters
    ):
        config.env.kwargs = {**kwargs, UNGRADED: True}


def rate_by_grade(config: SiiRLArguments) -> None:
    """Evaluate with `reward.name=return`, unless only the reward can rate rows without a grade.

    The run's reward may need files that have since been deleted, such as demonstrations or a model.
    """
    ask_ungraded_rows(config)
    if not config.env.kwargs.get(UNGRADED):
        config.reward.name = "return"


def grading_problems(
    band: FilterArguments, reward: RewardArguments, custom: CustomRewardArguments, spec: EnvSpec
) -> Iterator[SiirlError]:
    """Settings that need a grade although some rows have none."""
    if not spec.leaves_ungraded:
        return
    asked = f"env.kwargs.{UNGRADED}=true uses rows that the environment cannot grade"
    part = grade_of_every_row(reward, custom)
    if part is not None:
        yield ConfigError(
            f"{asked}, but {part} is its grade: give your own reward function "
            "(custom_reward_function), or false."
        )
    if band.metric == "success":
        yield ConfigError(
            f"{asked}, but algorithm.filter.metric=success compares its grades: use score, or "
            f"env.kwargs.{UNGRADED}=false."
        )
    if (band.success_low, band.success_high) != (0.0, 1.0):
        yield ConfigError(
            f"{asked}, but algorithm.filter.success_low={band.success_low}, "
            f"success_high={band.success_high} need its grades: leave them out, or set "
            f"env.kwargs.{UNGRADED}=false."
        )
