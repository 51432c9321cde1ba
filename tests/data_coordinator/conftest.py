"""Prompt files that the tests of this folder share."""

from pathlib import Path

import pytest

from tests.data_coordinator.prompt_loaders import write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same prompts in each format; see `write_files`."""
    return write_files(tmp_path_factory.mktemp("prompts"))
