"""A user's modules and servers, found by name."""

import shutil
import sys
from pathlib import Path

import pytest


@pytest.fixture
def tool_module(tmp_path, monkeypatch) -> str:
    """`tool_functions.py`, importable as `tests_envs_tools` here and in worker processes."""
    shutil.copy(Path(__file__).with_name("tool_functions.py"), tmp_path / "tests_envs_tools.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tests_envs_tools", raising=False)
    return "tests_envs_tools"


@pytest.fixture
def plain_server() -> dict[str, object]:
    """Command of an MCP server that starts quickly, see `plain_server.py`."""
    return {
        "command": sys.executable,
        "args": ["-S", str(Path(__file__).with_name("plain_server.py"))],
    }


@pytest.fixture
def notes_server() -> dict[str, object]:
    """Command of a real MCP server, see `notes_server.py`."""
    return {"command": sys.executable, "args": [str(Path(__file__).with_name("notes_server.py"))]}
