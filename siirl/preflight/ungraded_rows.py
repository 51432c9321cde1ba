"""Who says how good an answer from a file is: the environment, which holds it against the row's
truth, or the user's own reward.

Rows that no environment can grade (no truth, or a style that wants a judge) are refused, because a
run that is rewarded by the grade could not use them. Where the reward asks nobody for a grade they
are asked all the same, and nothing is said of their success.
"""

from collections.abc import Iterator

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params.training_args import SiiRLArguments

GRADES = ("success", "return")
"""Rewards of text that are the environment's own grade."""
UNGRADED = "ungraded"
ASK_UNGRADED = ("math", "tools")
"""Environments that have an argument of this name; one of the user's own that has it is told by
env.kwargs.
"""


def grade_of_every_row(config: SiiRLArguments) -> str | None:
    """The key of a part of the reward that is the environment's grade, whatever a row's data
    source; None where there is none.
    """
    parts = [
        (f"reward.functions[{number}].name", part)
        for number, part in enumerate(config.reward.functions)
    ]
    if config.custom_reward_function.name is not None:
        parts.append(("custom_reward_function.name", {"name": config.custom_reward_function.name}))
    for place, part in parts or [("reward.name", {"name": config.reward.name})]:
        if part.get("name") in GRADES and not part.get("data_sources"):
            return f"{place}={part['name']}"
    return None


def ask_ungraded_rows(config: SiiRLArguments) -> None:
    """Set `env.kwargs.ungraded` where rows come from files and the reward needs no grade, unless it
    is set.
    """
    kwargs = config.env.kwargs
    from_files = bool(config.data.train_files or kwargs.get("files"))
    if (
        from_files
        and config.env.name in ASK_UNGRADED
        and UNGRADED not in kwargs
        and grade_of_every_row(config) is None
    ):
        config.env.kwargs = {**kwargs, UNGRADED: True}


def rate_by_grade(config: SiiRLArguments) -> None:
    """Leave the reward out of an evaluation (`reward.name=return` asks nobody), unless rows without
    a grade are asked: it rates them.

    What the evaluated run was rewarded by may need what is not there any more, such as
    demonstrations or another model.
    """
    ask_ungraded_rows(config)
    if not config.env.kwargs.get(UNGRADED):
        config.reward.name = "return"


def grading_problems(config: SiiRLArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    """What would go by a grade where rows may have none."""
    if not spec.leaves_ungraded:
        return
    asked, band = (
        f"env.kwargs.{UNGRADED}=true asks rows that the environment cannot grade",
        config.algorithm.filter,
    )
    part = grade_of_every_row(config)
    if part is not None:
        yield ConfigError(
            f"{asked}, and {part} rewards its grade: give a reward function of your own (custom_reward_function), or false."
        )
    if band.metric == "success":
        yield ConfigError(
            f"{asked}, and algorithm.filter.metric=success compares its grades: take score, or env.kwargs.{UNGRADED}=false."
        )
    if (band.success_low, band.success_high) != (0.0, 1.0):
        yield ConfigError(
            f"{asked}, and algorithm.filter.success_low={band.success_low}, success_high={band.success_high} go by its grades: leave them "
            f"out, or set env.kwargs.{UNGRADED}=false."
        )
