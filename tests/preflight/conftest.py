"""Fixtures of the tests of plans."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    def write(config: dict[str, Any]) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write
