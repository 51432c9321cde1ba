"""Parts that need no simulator and no cluster import without OpenGL, MuJoCo, Ray and vLLM, and
without what only Linux has in `os`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

IMPORT_ALL = """
import importlib, os, pkgutil, sys

blocked, names = sys.argv[1].split(","), sys.argv[2].split(",")

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in blocked:
    assert name not in sys.modules
sys.meta_path.insert(0, Absent)
for only_linux in ("sched_getaffinity", "memfd_create", "pidfd_open", "eventfd"):
    if hasattr(os, only_linux):
        delattr(os, only_linux)

imported = []
for name in names:
    package = importlib.import_module(name)
    imported.append(name)
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), f"{name}."):
        importlib.import_module(found.name)
        imported.append(found.name)
print(*imported)
"""
SIMULATORS_AND_CLUSTERS = (
    "OpenGL",
    "glfw",
    "mujoco",
    "metaworld",
    "libero",
    "robosuite",
    "ray",
    "vllm",
)
LEARNING = ("torch", "tensordict", "transformers")


def imported(*names: str, blocked: tuple[str, ...], cwd: Path) -> list[str]:
    """Modules that import in a process without `blocked` and its submodules."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, ",".join(blocked), ",".join(names)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("name", "one_of_its_modules"),
    [
        ("siirl.algos", "siirl.algos.policy_losses.clipped_ratio"),
        ("siirl.execution.dag", "siirl.execution.dag.task_graph"),
        ("siirl.params", "siirl.params.parser"),
        ("siirl.completion", "siirl.completion"),
        ("envs.base", "envs.base"),
        ("envs.math", "envs.math.grading"),
        ("pipelines", "pipelines.grpo"),
        ("vjepa", "vjepa.reward"),
    ],
)
def test_a_part_imports_without_simulators_and_clusters(
    name: str, one_of_its_modules: str, tmp_path: Path
) -> None:
    assert one_of_its_modules in imported(name, blocked=SIMULATORS_AND_CLUSTERS, cwd=tmp_path)


def test_declaring_and_checking_a_job_needs_no_torch_either(tmp_path: Path) -> None:
    names = (
        "siirl.execution.dag",
        "siirl.params",
        "siirl.preflight.early_checks",
        "siirl.completion",
        "envs.base",
        "envs.math",
        "pipelines",
        "siirl.train",
        "siirl.engine.reward_worker",  # imported by every process of a reward function
    )
    assert "siirl.preflight.early_checks" in imported(
        *names, blocked=SIMULATORS_AND_CLUSTERS + LEARNING, cwd=tmp_path
    )


def test_a_worker_starts_without_what_only_some_jobs_need() -> None:
    """They would be a quarter of the time in which it imports; pyarrow takes 35 MB."""
    of_some_jobs = ("transformers", "accelerate", "scipy", "sklearn", "pyarrow")
    show = "import sys, siirl.dag_worker.dagworker; print(*{*sys.argv} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", show, *of_some_jobs], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


def test_a_blocked_package_cannot_be_imported(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="No module named 'ray'"):
        imported("siirl.env_server.ray_transport", blocked=("ray",), cwd=tmp_path)
