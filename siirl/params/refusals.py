"""Raises several configuration errors as one."""

from collections.abc import Sequence

from siirl.errors import CheckpointError, ConfigError, MissingAssetError, SiirlError

REFUSALS = (ConfigError, MissingAssetError, CheckpointError)
"""Errors raised before a run starts; changing the job remedies them."""


def refuse(problems: Sequence[SiirlError]) -> None:
    """Raise a single error itself, or several as one ConfigError that lists them; return if there
    is none.
    """
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, start=1))
    raise ConfigError(f"{len(problems)} problems:\n{lines}")
