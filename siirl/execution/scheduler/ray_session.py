"""Connects the command to a Ray cluster or starts a private one; always leaves or ends it
afterwards.
"""

import functools
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siirl.errors import ConfigError, RunFailed, SiirlError
from siirl.execution.scheduler.cluster_watch import ClusterWatch, StoppedWatch
from siirl.execution.scheduler.placement import is_this_machine_alive, servers_of_cluster
from siirl.execution.scheduler.private_session import (
    PRIVATE_FOLDER,
    SESSION,
    keep_token_private,
    private_environment,
    private_folder,
)
from siirl.execution.scheduler.ray_errors import stated_cause
from siirl.execution.scheduler.vitals import Vitals
from siirl.interrupts import Interrupted, end_at_once

logger = logging.getLogger(__name__)

# Environment variables that Ray reads when it is imported; the user's own values take precedence.
# Ray starts workers at niceness 15; but simulators and ranks are the job itself and should not wait
# for other processes.
AS_A_JOB = {
    "RAY_worker_niceness": "0",
    # The launcher reads each rank's error. Ray would also print, with traces, errors that the
    # launcher does not read because another rank failed first.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}
# If another server than Ray is at the address, give up after 20 seconds instead of minutes.
TO_CONNECT = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_py_gcs_connect_timeout_s": "5"}
WORKING_FOLDER = "SIIRL_WORKING_FOLDER"
# A rank takes the first GPU that it sees (siirl.engine.training.rank_device). Users of other
# frameworks set this to 1, and every rank would then see, and take, the machine's first GPU.
OWN_GPUS_ONLY = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "0"}
# Beginnings of names. Processes of a running cluster have the environment of its `ray start`, but
# these settings of libraries are the command's.
PASSED_ON = (
    *("NCCL_", "TORCH_NCCL_", "GLOO_SOCKET_IFNAME", "CUBLAS_WORKSPACE_CONFIG"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *("HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT"),
    *("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID"),
)
# Ray gives its own processes 30 seconds to start (a constant in ray/_private/node.py of 2.60),
# which is too short on a busy machine.
TIMED_OUT, STARTS = "timed out during startup", 3
FAILED = 1
MESSAGES_FILE = "ray.txt"  # in a run folder
SMALLEST_STORE = 75 * 1024 * 1024  # Ray refuses a smaller object store
SHARED_MEMORY_USED = 0.95  # share of /dev/shm for the object store, as in Ray's own default
SHUTDOWN_S = 20.0  # one or two seconds on an idle machine


@dataclass(frozen=True)
class ClusterSettings:
    """Placement of the workers."""

    address: str | None
    """HOST:PORT of a running Ray cluster, which outlives the run; None: start a private one on this
    machine, which ends with the run.
    """
    env_vars: Mapping[str, str]
    """Environment variables of every process."""
    messages: Path | None = None
    """File for Ray's messages and the traces of its processes; None: stderr."""
    store_bytes: float = 0.0
    """Least size of a private Ray's object store; 0: Ray's default."""


@contextmanager
def ray_session(settings: ClusterSettings) -> Iterator[None]:
    """Connect to a cluster or start one; leave or end it in any case.

    Raises:
        ConfigError: No cluster at the address, or one with another version of Ray or Python.
        RunFailed: Ray does not start on this machine, or fails later.
    """
    keep_token_private()
    prepare_environment(settings)
    with (
        private_folder() if settings.address is None else nullcontext() as folder,
        StoppedWatch(),
        _connected(settings, folder),
    ):
        yield


def prepare_environment(settings: ClusterSettings) -> None:
    """Set the environment variables of Ray that the user has not set."""
    for_cluster = private_environment() if settings.address is None else TO_CONNECT | credentials()
    for name, value in (AS_A_JOB | for_cluster).items():
        os.environ.setdefault(name, value)
    read_environment_again()


def read_environment_again() -> None:
    """Make Ray read its environment variables again if a user's module has already imported it.

    Ray 2.60 reads them when it is imported: an earlier import would leave it without the run's
    token, and listening on all interfaces.
    """
    if "ray" not in sys.modules:
        return
    from ray._private import ray_constants

    importlib.reload(ray_constants)
    raylet: Any = importlib.import_module("ray._raylet")  # has no types
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _connected(settings: ClusterSettings, folder: Path | None) -> Iterator[None]:
    """`ray_session` without the preparations before the import of Ray."""
    try:
        with _own_signal_handlers():
            started = _init(settings, folder, starts=1 if settings.address else STARTS)
    except SystemExit as error:  # Ray's reaction to a SIGTERM while it starts
        raise Interrupted(signal.SIGTERM) from error
    except Exception as error:  # raised when Ray's own processes do not start in time
        raise _no_session(settings, error) from error
    from ray.exceptions import RayError, RayTaskError

    from siirl.execution.scheduler.rank_output import printed
    from siirl.execution.scheduler.ray_messages import kept

    vitals = Vitals(servers_of_cluster())
    with kept(settings.messages):
        try:
            with printed(), ClusterWatch(Vitals(vitals.servers), node_lives=is_this_machine_alive):
                yield
        except RayError as error:
            vitals.explain()
            cause = error.cause if isinstance(error, RayTaskError) else error
            if not isinstance(cause, RayError):
                raise cause from error
            raise RunFailed(f"Ray failed: {stated_cause(cause)}.") from error
        finally:
            _shut_down(started)


def _shut_down(started: set[int]) -> None:
    """Leave Ray, or end the Ray whose processes were `started`. Ray 2.60 waits without limit for
    the raylet's answer: see `_end_silent_ray`.
    """
    import ray

    timer = threading.Timer(SHUTDOWN_S, _end_silent_ray, args=(started,))
    timer.daemon = True
    timer.start()
    try:
        ray.shutdown()
    finally:
        timer.cancel()


def _end_silent_ray(started: set[int]) -> None:
    """Kill the Ray that this process `started`, so that `ray.shutdown` returns.

    An existing cluster keeps running; this process ends without leaving it.
    """
    if not started:
        end_at_once(
            FAILED,
            "the run failed: Ray's raylet on this machine does not answer when the command wants "
            "to leave the cluster.",
        )
    _kill(started)


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, signal.SIGKILL)


def _init(settings: ClusterSettings, folder: Path | None, *, starts: int) -> set[int]:
    """Connect, or start a cluster in `folder`; restart one that did not come up in time.

    Returns:
        The processes that were started; none if a cluster was running.
    """
    import ray

    before = _children()
    try:
        with _own_process_groups():
            ray.init(
                address=settings.address or "local",
                include_dashboard=False,
                log_to_driver=True,
                logging_level=logging.WARNING,
                runtime_env=_runtime_env(settings, folder),
                object_store_memory=store_memory(settings),
                _temp_dir=None if folder is None else str(folder / SESSION),
            )
    except Exception as error:
        if starts == 1 or TIMED_OUT not in str(error):
            raise
        logger.warning("Ray did not come up in time; starting it again.")
        _kill(_children() - before)
        return _init(settings, folder, starts=starts - 1)
    return _children() - before if settings.address is None else set()


def store_memory(settings: ClusterSettings) -> int | None:
    """Size of the object store: the larger of Ray's default and the size that was asked for, and
    no more than /dev/shm has, beyond which Ray 2.60 would keep the whole store on the disk. None:
    Ray decides.
    """
    if settings.address is not None or not settings.store_bytes:
        return None
    utils: Any = importlib.import_module("ray._private.utils")  # has no types
    default = utils.resolve_object_store_memory(utils.estimate_available_memory())
    in_memory = SHARED_MEMORY_USED * utils.get_shared_memory_bytes()
    return int(max(SMALLEST_STORE, min(max(default, settings.store_bytes), in_memory)))


def _runtime_env(settings: ClusterSettings, folder: Path | None) -> dict[str, Any]:
    """Environment of each process of the job. Processes of a running cluster start in a separate
    folder, not in the command's.
    """
    of_every_process = {**OWN_GPUS_ONLY, **settings.env_vars}
    if folder is not None:
        return {"env_vars": {**of_every_process, PRIVATE_FOLDER: str(folder)}}
    hook = f"{__name__}.{change_to_command_folder.__name__}"
    passed_on = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    return {
        "env_vars": {**passed_on, **of_every_process, WORKING_FOLDER: os.getcwd()},
        "worker_process_setup_hook": hook,
    }


def change_to_command_folder() -> None:
    """Change to the command's folder: called by Ray in each process, so that relative paths of the
    configuration resolve as they do for the command.

    A machine that lacks the folder may still serve environments, which do not need it.
    """
    with suppress(FileNotFoundError):
        os.chdir(os.environ[WORKING_FOLDER])


def _children() -> set[int]:
    """Process ids of this process's own children."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            found |= {int(pid) for pid in (thread / "children").read_text().split()}
    return found


def credentials() -> dict[str, str]:
    """Environment in which Ray 2.60 presents its token; a cluster without a token also accepts
    it.
    """
    return {"RAY_AUTH_MODE": "token"} if (Path.home() / ".ray" / "auth_token").is_file() else {}


def _no_session(settings: ClusterSettings, error: Exception) -> SiirlError:
    if settings.address is None:
        return RunFailed(
            f"Ray did not start on this machine: {error} It may be too busy, or short of memory: "
            "try again, or cluster=local."
        )
    return ConfigError(
        f"cluster.address={settings.address}: {error}. Start a cluster with this Ray and Python "
        "there (ray start --head), or leave cluster.address out to run on this machine."
    )


@contextmanager
def _own_process_groups() -> Iterator[None]:
    """Start each process of Ray in its own process group; Ray 2.60 has no option for it.

    A signal to the command's group then reaches only the command, which saves its weights before it
    ends Ray: `timeout`, `scancel` and service managers send SIGTERM to a whole group.
    """
    services: Any = importlib.import_module("ray._private.services")
    popen = services.ConsolePopen
    services.ConsolePopen = functools.partial(popen, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = popen


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Restore this process's handler of SIGTERM, which ray.init replaces.

    Signals are also blocked while Ray starts its processes, which inherit the mask: a closing
    terminal must not end them before the run has saved its weights. Ray itself protects them from
    Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGTERM)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
