"""Raises several configuration errors as one."""

from collections.abc import Sequence

from siirl.errors import CheckpointError, ConfigError, MissingAssetError, SiirlError

REFUSALS = (ConfigError, MissingAssetError, CheckpointError)
"""Errors that are raised before a run starts, which a change of the job remedies."""


def refuse(problems: Sequence[SiirlError]) -> None:
    """Raise a single error itself, several as one ConfigError that lists them; none: return."""
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, start=1))
    raise ConfigError(f"{len(problems)} things cannot work:\n{lines}")
