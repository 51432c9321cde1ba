"""Settings of every test: one thread per process, headless OpenGL, no Ray telemetry; set before
torch or MuJoCo is imported.

Tests import packages from the checkout (`pythonpath` in pyproject.toml); processes that tests start
find them through PYTHONPATH.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# A busy machine must not fail a property; limits of tests are for hangs.
hypothesis.settings.register_profile("siirl", deadline=None)
hypothesis.settings.load_profile("siirl")


def _prepare_environment() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # two OpenMP threads on contended cores collapse
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # runs have two; the second would spin while it waits
    from envs.offscreen import choose_backend  # imports numpy, which reads the number of threads

    choose_backend()  # sets MUJOCO_GL
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"  # no test may depend on a download
    path = os.environ.get("PYTHONPATH")
    folders = [str(REPOSITORY), str(REPOSITORY / "docs" / "examples"), *([path] if path else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)


def _hear_signals() -> None:
    """Restore Python's own handling: nohup ignores SIGHUP, and a shell's background jobs ignore
    SIGINT, for all their children.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


_prepare_environment()
_hear_signals()


REGISTRIES = (
    ("envs.registry", "ENVS"),
    ("siirl.algos.advantages.advantage_registry", "ADVANTAGES"),
    ("siirl.algos.advantages.advantage_registry", "REWARD_AT_FINISH"),
    ("siirl.algos.aggregation", "AGGREGATIONS"),
    ("siirl.algos.filters", "FILTERS"),
    ("siirl.algos.filters", "MEASURES"),
    ("siirl.algos.kl", "KL_ESTIMATORS"),
    ("siirl.algos.policy_losses.loss_registry", "POLICY_LOSSES"),
    ("siirl.algos.policy_losses.loss_registry", "LOSS_TRAITS"),
    ("siirl.compat.core_algos", "POLICY_LOSS_REGISTRY"),
    ("siirl.reporting.metric_writers", "WRITERS"),
    ("siirl.engine.training.schedules", "SCHEDULES"),
)


# Folders with the longest files, which start first, so that no process is left with one at the end.
LONGEST_FIRST = ("main_job", "dag_worker", "engine", "env_server", "examples", "gpu_checks", "envs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the folders of `LONGEST_FIRST` in front; pytest-xdist hands files out in this order."""

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(REPOSITORY / "tests").parts[0]
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)


@pytest.fixture(autouse=True)
def registries_afterwards_as_before() -> Iterator[None]:
    """Undo a test's registrations of names and its imports of user modules."""
    places = [(sys.modules[module], name) for module, name in REGISTRIES if module in sys.modules]
    kept = [getattr(module, name).copy() for module, name in places]
    yield
    for (module, name), before in zip(places, kept, strict=True):
        registry = getattr(module, name)
        if registry != before:
            registry.clear()
            registry.update(before)


@pytest.fixture(autouse=True)
def one_thread_of_torch_afterwards() -> Iterator[None]:
    """Undo the number of threads that a run in this process has set."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root folder of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="module")
def ray_in_this_process() -> Iterator[None]:
    """Ray on two cores for the tests of a file, without a token: Ray 2.60 would write one to the
    home folder.
    """
    import ray

    from siirl.execution.scheduler.ray_session import read_environment_again

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        read_environment_again()  # an earlier test may have left another mode
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=100 * 2**20,
        )
        yield
        ray.shutdown()


@pytest.fixture(scope="session")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(repository),
    ]
    done = subprocess.run(
        [sys.executable, *build], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("siirl-*.whl")
    return built
