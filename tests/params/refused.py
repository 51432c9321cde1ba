"""The refusal of a command line."""

from pathlib import Path

import pytest

from siirl.errors import ConfigError, MissingAssetError
from siirl.params.parser import parse


def refusal(*overrides: str, config_file: Path | None = None) -> str:
    """The message with which a command line is refused."""
    with pytest.raises((ConfigError, MissingAssetError)) as caught:
        parse(overrides, config_file=config_file)
    return str(caught.value)
