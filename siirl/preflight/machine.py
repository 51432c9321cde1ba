"""What this machine has: devices, memory, an OpenGL that draws, a Ray cluster that answers.

Probes are cheap, and torch is imported only where a GPU may be.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from envs.base import EnvSpec
from siirl.errors import ConfigError, MissingAssetError, SiirlError
from siirl.params.refusals import refuse
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.memory import (
    episodes_at_once,
    evaluation_memory,
    shortage,
    simulation_problems,
)
from siirl.preflight.ray_address import address_problems

DRAWING_ENVS = ("mujoco", "libero")
OPENGL_PROBE = "from envs.offscreen import make_context; make_context(8)"
OPENGL_TIMEOUT_S = 60
# threads that compute: more than one on a core only take turns, so four are a slip and not a choice
THREADS_PER_CORE = 4
# processes that wait for each other much of the time; the shipped jobs have at most four on a
# machine with one core
PROCESSES_PER_CORE = 8


def check_machine(config: SiiRLArguments, spec: EnvSpec) -> None:
    """Refuse what this machine lacks for episodes that are played and not trained on; more memory
    than is free now is a warning.

    Raises:
        ConfigError: Far more memory than there is, or a cluster that does not answer.
        MissingAssetError: No OpenGL.
    """
    held = episodes_at_once(config)
    refuse(
        [
            *machine_problems(config),
            *simulation_problems(config, spec, held, total_memory_bytes=total_memory_bytes()),
        ]
    )
    lacking = shortage(evaluation_memory(config, spec), free_memory_bytes=free_memory_bytes())
    if lacking is not None:
        print(f"Warning: {lacking}", file=sys.stderr)


def require_linux(system: str = sys.platform) -> None:
    """Refuse a run on a system whose processes siirl cannot count, watch and end.

    Raises:
        ConfigError: `system`, as `sys.platform` names it, is not Linux.
    """
    if system != "linux":
        raise ConfigError(
            f"Runs need Linux, and this system is {system}: siirl counts cores by sched_getaffinity and watches processes in /proc. "
            "docs/installing.md lists the parts that work elsewhere."
        )


def machine_problems(config: SiiRLArguments) -> list[SiirlError]:
    """What this machine lacks beside devices."""
    problems: list[SiirlError] = [*address_problems(config.cluster.address)]
    if config.env.name in DRAWING_ENVS:
        problems += opengl_problems()
    return problems


def device_slots() -> tuple[int, str]:
    """How many ranks fit on this machine, and what carries one: GPUs where torch sees some, else
    CPU processes.
    """
    if shutil.which("nvidia-smi") is not None:
        import torch  # slow to import: only where there may be a GPU

        if torch.cuda.device_count() > 0:
            return torch.cuda.device_count(), "GPU"
    return len(os.sched_getaffinity(0)), "CPU core"


def free_memory_bytes() -> int:
    """Memory that processes can still get, without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def total_memory_bytes() -> int:
    """All memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def opengl_problems() -> list[SiirlError]:
    """Try to draw, in a process of its own: a broken driver may crash."""
    command = [sys.executable, "-c", OPENGL_PROBE]
    try:
        probe = subprocess.run(
            command, capture_output=True, text=True, timeout=OPENGL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        backend = os.environ.get("MUJOCO_GL", "(not set)")
        return [
            MissingAssetError(
                f"MuJoCo made no OpenGL context within {OPENGL_TIMEOUT_S} s (MUJOCO_GL={backend}): try egl or osmesa."
            )
        ]
    if probe.returncode == 0:
        return []
    reason = (probe.stderr.strip().splitlines() or [f"it died with status {probe.returncode}"])[-1]
    return [MissingAssetError(f"MuJoCo cannot draw here: {reason.removeprefix('RuntimeError: ')}")]


def process_problems(config: SiiRLArguments, *, cores: int) -> Iterator[SiirlError]:
    """Far more threads or processes than this machine has cores for, where it is the only one of
    the run.
    """
    if config.cluster.address is not None or config.trainer.nnodes > 1:
        return  # how many cores the other machines have is not known here
    ranks, servers, graders = (
        config.trainer.n_gpus_per_node,
        config.env.num_servers,
        config.env.kwargs.get("num_graders"),
    )
    of_ranks, of_servers = (
        (ranks, f"trainer.n_gpus_per_node={ranks} ranks"),
        (servers, f"env.num_servers={servers} servers"),
    )
    asked = (
        ("trainer.threads_per_rank", config.trainer.threads_per_rank, *of_ranks, THREADS_PER_CORE),
        ("data.num_loader_workers", config.data.num_loader_workers, *of_ranks, PROCESSES_PER_CORE),
        (
            "reward.num_workers",
            None if config.reward.manager == "naive" else config.reward.num_workers,
            *of_ranks,
            PROCESSES_PER_CORE,
        ),
        ("env.num_servers", servers, 1, "", PROCESSES_PER_CORE),
        (
            "env.kwargs.num_graders",
            graders if isinstance(graders, int) else None,
            *of_servers,
            PROCESSES_PER_CORE,
        ),
    )
    for key, value, times, of, per_core in asked:
        most = max(1, per_core * cores // times)
        if value is None or value <= most:
            continue
        kind = "threads" if per_core == THREADS_PER_CORE else "processes"
        each = (
            f" for each of {of} makes {value * times} {kind}"
            if times > 1
            else f" asks for as many {kind}"
        )
        yield ConfigError(
            f"{key}={value}{each}, and this machine has {cores} core{'s' * (cores != 1)}: make it at most {most}."
        )


def device_problems(config: SiiRLArguments) -> Iterator[SiirlError]:
    """More ranks than this machine has devices for; asked first, since other sizes are judged by
    the number of ranks.
    """
    if config.cluster.address is not None or config.trainer.nnodes > 1:
        return  # the cluster knows its devices; it is asked when it is reached
    if config.trainer.n_gpus_per_node == 1:
        return  # one rank runs anywhere
    available, kind = device_slots()
    wanted = config.trainer.n_gpus_per_node
    if wanted > available:
        yield ConfigError(
            f"trainer.n_gpus_per_node={wanted} asks for {wanted} ranks, and this machine has {available} {kind}{'s' * (available != 1)}, "
            f"one for each: make it at most {available}, or give cluster.address= of a larger cluster."
        )
