"""Checks of this machine: devices, memory, OpenGL, the Ray cluster's address.

Probes are cheap; torch is imported only if NVIDIA's driver is installed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envs.base import EnvSpec
from siirl.errors import ConfigError, MissingAssetError, SiirlError, refuse
from siirl.params import sizes
from siirl.params.cluster_args import ClusterArguments
from siirl.params.dag_args import DagArguments
from siirl.params.domains import VLLM
from siirl.params.model_args import ActorArguments, ActorRolloutRefArguments
from siirl.params.packages import has_compilers
from siirl.params.rollout_args import RolloutArguments
from siirl.params.sizes import GIB
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.memory import (
    episodes_at_once,
    evaluation_memory,
    shortage,
    simulation_problems,
)
from siirl.preflight.ray_address import address_problems
from siirl.terminal.warning_lines import warn

NVIDIA_DRIVER = Path("/proc/driver/nvidia")
OPENGL_PROBE = "from envs.offscreen import make_context; make_context(8)"
OPENGL_TIMEOUT_S = 60
# compute threads; more than one per core only take turns, so four per core must be a mistake
THREADS_PER_CORE = 4
# processes often wait for each other; the shipped jobs have at most four per core
PROCESSES_PER_CORE = 8


@dataclass(frozen=True)
class Gpu:
    """A GPU into which the plan must fit."""

    memory_bytes: float
    name: str | None = None
    """As the subject of a sentence; None: `trainer.gpu_memory_gib` states its memory."""


def check_machine(config: SiiRLArguments, spec: EnvSpec) -> None:
    """Check this machine for an evaluation or warm start; too little free memory is a warning.

    Raises:
        ConfigError: The job needs far more memory than the machine has, or the cluster does not
            answer.
        MissingAssetError: No OpenGL.
    """
    held = episodes_at_once(
        sizes.slots(config.env, ranks=sizes.rollout_ranks(config.trainer, config.dag))
    )
    refuse(
        [
            *machine_problems(config.cluster, spec),
            *simulation_problems(config, spec, held, total_memory_bytes=total_memory_bytes()),
        ]
    )
    lacking = shortage(evaluation_memory(config, spec), free_memory_bytes=free_memory_bytes())
    if lacking is not None:
        warn(lacking)


def require_linux(system: str = sys.platform) -> None:
    """Refuse a run on a system other than Linux.

    Raises:
        ConfigError: `system`, as `sys.platform` names it, is not Linux.
    """
    if system != "linux":
        raise ConfigError(
            f"Runs need Linux, but this system is {system}: siirl needs sched_getaffinity and "
            "/proc. docs/installing.md lists the parts that work elsewhere."
        )


def machine_problems(cluster: ClusterArguments, spec: EnvSpec) -> list[SiirlError]:
    """Errors about the cluster's address and OpenGL."""
    problems: list[SiirlError] = [*address_problems(cluster.address)]
    if spec.needs_opengl:
        problems += opengl_problems()
    return problems


def device_slots() -> tuple[int, str]:
    """Number of ranks that fit on this machine, and their device: GPUs, or CPUs without GPUs."""
    if has_nvidia_driver():
        import torch  # slow to import

        if torch.cuda.device_count() > 0:
            return torch.cuda.device_count(), "GPU"
    return len(os.sched_getaffinity(0)), "CPU core"


def has_nvidia_driver(driver: Path = NVIDIA_DRIVER) -> bool:
    """Whether this machine has NVIDIA's driver; a container may have it without nvidia-smi."""
    return driver.is_dir() or shutil.which("nvidia-smi") is not None


def planned_gpu(
    cluster: ClusterArguments,
    trainer: TrainingArguments,
    *,
    slots: Callable[[], tuple[int, str]],
) -> Gpu | None:
    """The GPU into which a rank must fit: the smallest of this machine, or with less memory if
    `trainer.gpu_memory_gib` states less. With `cluster.address`, or without a GPU in this machine,
    only the stated memory is known; None without it. `slots` is `device_slots`.
    """
    found = []
    if trainer.gpu_memory_gib is not None:
        found.append(Gpu(trainer.gpu_memory_gib * GIB))
    number, kind = slots()
    if kind == "GPU" and cluster.address is None:
        import torch

        properties = map(torch.cuda.get_device_properties, range(number))
        found += [
            Gpu(float(each.total_memory), f"this machine's {each.name}") for each in properties
        ]
    return min(found, key=lambda gpu: gpu.memory_bytes, default=None)


def free_memory_bytes() -> int:
    """Available memory, without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def total_memory_bytes() -> int:
    """Total memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def shared_memory_bytes() -> int:
    """Free bytes of /dev/shm, where Ray's object store is."""
    place = os.statvfs("/dev/shm")
    return place.f_frsize * place.f_bavail


def opengl_problems() -> list[SiirlError]:
    """Try to render, in a separate process because a broken driver may crash."""
    command = [sys.executable, "-c", OPENGL_PROBE]
    try:
        probe = subprocess.run(
            command, capture_output=True, text=True, timeout=OPENGL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        backend = os.environ.get("MUJOCO_GL", "(not set)")
        return [
            MissingAssetError(
                f"MuJoCo made no OpenGL context within {OPENGL_TIMEOUT_S} s "
                f"(MUJOCO_GL={backend}): try egl or osmesa."
            )
        ]
    if probe.returncode == 0:
        return []
    reason = (probe.stderr.strip().splitlines() or [f"it exited with status {probe.returncode}"])[
        -1
    ]
    return [
        MissingAssetError(f"MuJoCo cannot render here: {reason.removeprefix('RuntimeError: ')}")
    ]


def process_problems(config: SiiRLArguments, *, cores: int) -> Iterator[SiirlError]:
    """Settings that need far more threads or processes than a single machine has cores."""
    if config.cluster.address is not None or config.trainer.nnodes > 1:
        return  # the cores of the other machines are unknown
    ranks = config.trainer.n_gpus_per_node
    servers = config.env.num_servers
    graders = config.env.kwargs.get("num_graders")
    of_ranks = (ranks, f"trainer.n_gpus_per_node={ranks} ranks")
    of_servers = (servers, f"env.num_servers={servers} servers")
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
            f"{key}={value}{each}, but this machine has {cores} core{'s' * (cores != 1)}: make it "
            f"at most {most}."
        )


def device_problems(config: SiiRLArguments) -> Iterator[SiirlError]:
    """More ranks than devices; checked first, because other sizes depend on ranks."""
    trainer = config.trainer
    yield from tensor_parallel_problems(config, slots=device_slots)
    if config.cluster.address is not None or trainer.nnodes > 1:
        return  # the cluster checks its devices when the run connects
    if trainer.n_gpus_per_node == 1:
        return  # one rank runs anywhere
    available, kind = device_slots()
    wanted = trainer.n_gpus_per_node
    if wanted > available:
        yield ConfigError(
            f"trainer.n_gpus_per_node={wanted} asks for {wanted} ranks, but this machine has "
            f"{available} {kind}{'s' * (available != 1)} for them: make it at most {available}, or "
            "give cluster.address= of a larger cluster."
        )


def offload_problems(
    policy: ActorRolloutRefArguments,
    cluster: ClusterArguments,
    trainer: TrainingArguments,
    *,
    slots: Callable[[], tuple[int, str]],
) -> Iterator[SiirlError]:
    """Offloading settings on a machine without a GPU, unless the job is for other machines, whose
    GPUs' memory it states; `slots` is `device_slots`.
    """
    asked = {
        "actor_rollout_ref.actor.offload_optimizer": policy.actor.offload_optimizer,
        "actor_rollout_ref.ref.offload": policy.ref.offload,
    }
    elsewhere = cluster.address is not None or trainer.gpu_memory_gib is not None
    if elsewhere or not any(asked.values()) or slots()[1] == "GPU":
        return
    for key in filter(asked.__getitem__, asked):
        yield ConfigError(
            f"{key}=true frees a GPU's memory, but this machine has no GPU: leave it out, or, "
            "for other machines, state the memory of their GPUs in trainer.gpu_memory_gib."
        )


def compile_problems(
    actor: ActorArguments,
    rollout: RolloutArguments,
    dag: DagArguments,
    *,
    compilers: Callable[[], bool],
) -> Iterator[SiirlError]:
    """Blocks that cannot be compiled here.

    Args:
        actor: Training settings of the policy.
        rollout: Rollout settings of the policy.
        dag: Tells whether training has ranks without vLLM.
        compilers: Whether torch.compile finds what it needs.
    """
    if not actor.use_torch_compile:
        return
    key = "actor_rollout_ref.actor.use_torch_compile"
    if rollout.name == VLLM and rollout.mode != "async" and not sizes.separate(dag):
        yield ConfigError(
            f"{key}=true compiles only in updates and log-probs, but vLLM in the same process also "
            "compiles: set actor_rollout_ref.rollout.mode=async, or do not compile the blocks."
        )
    if not compilers():
        yield ConfigError(
            f"{key}=true needs a C++ compiler (g++, or the one that CXX names), and on a "
            "GPU the package triton: install them, or set it to false."
        )


def can_compile() -> bool:
    """Whether torch.compile can run on this machine."""
    return has_compilers(gpu=has_nvidia_driver())


def tensor_parallel_problems(
    config: SiiRLArguments, *, slots: Callable[[], tuple[int, str]]
) -> Iterator[SiirlError]:
    """Engines on more GPUs than this job or machine provides; `slots` is `device_slots`."""
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    each = sizes.gpus_of_rollout_rank(rollout)
    if each == 1:
        return
    key = f"actor_rollout_ref.rollout.tensor_model_parallel_size={each}"
    if not sizes.vllm_apart(trainer, config.dag, rollout):
        way = ", unless actor_rollout_ref.rollout.mode=async: set that, or make it 1"
        if trainer.deterministic:
            way = ", with trainer.deterministic=true: make it 1"
        yield ConfigError(f"{key}: vLLM runs in the rank's own process, on one GPU{way}.")
    if config.cluster.address is not None or trainer.nnodes > 1:
        return  # the cluster checks its devices when the run connects
    available, kind = slots()
    acting, others = sizes.rollout_ranks(trainer, config.dag), 0
    if sizes.separate(config.dag):
        others = sizes.training_ranks(trainer, config.dag)
    needed = acting * each + others
    if kind != "GPU":
        yield ConfigError(
            f"{key} asks for {each} GPUs for each rank, but this machine has none: make it 1."
        )
    elif needed > available:
        beside, ranks = "", "trainer.n_gpus_per_node (each rank trains on the first of its GPUs)"
        if others:
            beside, ranks = f", beside {others} that train,", "the ranks of dag.groups"
        yield ConfigError(
            f"{key} for each of {acting} ranks{beside} asks for {needed} GPUs, but this machine "
            f"has {available}: lower it or {ranks}."
        )
