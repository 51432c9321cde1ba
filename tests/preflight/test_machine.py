"""Refusals for resources that the machine lacks."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from envs.registry import env_spec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.cluster_args import ClusterArguments
from siirl.params.parser import parse_config
from siirl.params.sizes import GIB
from siirl.preflight.machine import (
    Gpu,
    compile_problems,
    device_problems,
    device_slots,
    free_memory_bytes,
    has_nvidia_driver,
    machine_problems,
    offload_problems,
    opengl_problems,
    planned_gpu,
    process_problems,
    require_linux,
    tensor_parallel_problems,
)

NO_DRAWING = ["pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1"]


def test_a_core_carries_a_rank_where_there_is_no_gpu() -> None:
    slots, kind = device_slots()
    assert slots >= 1
    assert kind in ("CPU core", "GPU")
    assert kind == "GPU" or slots <= (os.cpu_count() or 1)


def test_a_driver_is_found_where_nvidia_smi_is_not_installed(tmp_path: Path) -> None:
    assert has_nvidia_driver(tmp_path)


def devices(*overrides: str) -> list[SiirlError]:
    config = parse_config([*NO_DRAWING, *overrides])
    return list(device_problems(config))


def test_more_ranks_than_devices_are_refused_with_both_numbers() -> None:
    slots, kind = device_slots()
    found = [str(problem) for problem in devices(f"trainer.n_gpus_per_node={slots + 1}")]
    assert len(found) == 1
    assert (
        f"trainer.n_gpus_per_node={slots + 1} asks for {slots + 1} ranks, but this machine has "
        f"{slots} {kind}" in found[0]
    )
    assert f"make it at most {slots}" in found[0]


def test_as_many_ranks_as_devices_are_fine() -> None:
    assert devices(f"trainer.n_gpus_per_node={device_slots()[0]}") == []


def test_a_cluster_is_asked_for_its_devices_when_it_is_reached() -> None:
    assert devices("trainer.n_gpus_per_node=1000", "cluster.address=127.0.0.1:6379") == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["env.num_servers=17"],
            "env.num_servers=17 asks for as many processes, but this machine has 2 cores: make it "
            "at most 16.",
        ),
        (
            ["trainer.threads_per_rank=9"],
            "threads_per_rank=9 asks for as many threads, but this machine has 2 cores: make it at "
            "most 8.",
        ),
        (
            ["trainer.n_gpus_per_node=2", "trainer.threads_per_rank=5"],
            "=5 for each of trainer.n_gpus_per_node=2 ranks makes 10 threads, but this machine has "
            "2 cores: make it at most 4.",
        ),
        (["data.num_loader_workers=64"], "data.num_loader_workers=64 asks for as many processes"),
        (
            ["reward.manager=parallel", "reward.num_workers=64"],
            "reward.num_workers=64 asks for as many processes",
        ),
        (
            ["env.num_servers=2", "env.kwargs.num_graders=9"],
            "num_graders=9 for each of env.num_servers=2 servers makes 18 processes",
        ),
    ],
)
def test_far_more_threads_or_processes_than_cores_are_refused(
    words: list[str], expected: str
) -> None:
    (found,) = process_problems(parse_config(["env=math", *words]), cores=2)
    assert expected in str(found)


@pytest.mark.parametrize(
    "env", ["metaworld", "libero", "gymnasium", "custom", "math", "sandbox", "tools"]
)
def test_shipped_jobs_fit_on_one_core(env: str) -> None:
    assert list(process_problems(parse_config([f"env={env}"]), cores=1)) == []


@pytest.mark.parametrize("word", ["cluster.address=127.0.0.1:6379", "trainer.nnodes=2"])
def test_processes_on_other_machines_are_not_counted_by_this_ones_cores(word: str) -> None:
    assert list(process_problems(parse_config([word, "env.num_servers=1000"]), cores=2)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_free_memory_is_less_than_all_memory() -> None:
    assert 0 < free_memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_opengl_that_draws_is_not_a_problem() -> None:
    assert opengl_problems() == []


def test_opengl_is_tested_for_each_environment_whose_spec_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    cluster, math = ClusterArguments(), env_spec("math")
    own_simulator = dataclasses.replace(math, name="own:Simulator", needs_opengl=True)
    libero = env_spec("libero", assets="stand_in")
    for spec in (env_spec("metaworld"), libero, own_simulator):
        assert "MUJOCO_GL='vulkan'" in str(machine_problems(cluster, spec))
    assert machine_problems(cluster, math) == []


def test_a_missing_library_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    # The probe's interpreter finds this module at its start: a machine on which the loader knows no
    # OpenGL library.
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes.util\nctypes.util.find_library = lambda name: None\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    (problem,) = opengl_problems()
    assert str(problem).startswith("MuJoCo cannot render here: No OpenGL library")
    assert "apt-get install -y libegl1" in str(problem)


def test_a_backend_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    (problem,) = opengl_problems()
    assert "MUJOCO_GL='vulkan'" in str(problem)


def test_a_system_without_proc_is_refused_by_name() -> None:
    require_linux("linux")
    with pytest.raises(
        ConfigError, match=r"^Runs need Linux, but this system is darwin: .* docs/installing\.md"
    ):
        require_linux("darwin")


VLLM = ["pipeline=grpo", "env=math", "rollout=vllm"]
WIDTH = "actor_rollout_ref.rollout.tensor_model_parallel_size"
SEPARATE = ("trainer.n_gpus_per_node=2", "dag.groups={rollout: 1, train: 1}")


@pytest.mark.parametrize(
    ("words", "slots", "expected"),
    [
        ([f"{WIDTH}=2"], (8, "GPU"), "vLLM runs in the rank's own process, on one GPU, unless"),
        (
            ["actor_rollout_ref.rollout.mode=null", f"{WIDTH}=2"],
            (8, "GPU"),
            "vLLM runs in the rank's own process, on one GPU, unless",
        ),
        (
            [f"{WIDTH}=2", *SEPARATE, "trainer.max_staleness=2", "trainer.deterministic=true"],
            (8, "GPU"),
            "on one GPU, with trainer.deterministic=true: make it 1.",
        ),
        (
            [f"{WIDTH}=2", *SEPARATE],
            (8, "GPU"),
            "on one GPU, unless actor_rollout_ref.rollout.mode=async",
        ),
        (["actor_rollout_ref.rollout.mode=async", f"{WIDTH}=2"], (4, "CPU core"), "has none"),
        (
            ["actor_rollout_ref.rollout.mode=async", f"{WIDTH}=4", "trainer.n_gpus_per_node=3"],
            (8, "GPU"),
            "asks for 12 GPUs, but this machine has 8",
        ),
    ],
)
def test_a_wide_engine_without_its_gpus_is_refused(
    words: list[str], slots: tuple[int, str], expected: str
) -> None:
    config = parse_config([*VLLM, *words])
    [problem] = tensor_parallel_problems(config, slots=lambda: slots)
    assert expected in str(problem)


def test_a_wide_engine_has_as_many_gpus_as_it_is_wide() -> None:
    words = ["actor_rollout_ref.rollout.mode=async", f"{WIDTH}=4", "trainer.n_gpus_per_node=2"]
    config = parse_config([*VLLM, *words])
    assert list(tensor_parallel_problems(config, slots=lambda: (8, "GPU"))) == []
    rollout, dag = config.actor_rollout_ref.rollout, config.dag
    assert sizes.gpus_of_rollout_rank(rollout) == sizes.gpus_of_training_rank(rollout, dag) == 4


def test_a_stream_has_wide_engines_without_being_asynchronous() -> None:
    config = parse_config([*VLLM, *SEPARATE, "trainer.max_staleness=2", f"{WIDTH}=2"])
    assert config.actor_rollout_ref.rollout.mode is None
    assert list(tensor_parallel_problems(config, slots=lambda: (3, "GPU"))) == []


def test_a_rank_that_only_trains_has_one_gpu_beside_wide_engines() -> None:
    words = ["trainer.n_gpus_per_node=3", "dag.groups={rollout: 2, train: 1}", f"{WIDTH}=4"]
    config = parse_config([*VLLM, "actor_rollout_ref.rollout.mode=async", *words])
    assert sizes.gpus_of_training_rank(config.actor_rollout_ref.rollout, config.dag) == 1
    assert list(tensor_parallel_problems(config, slots=lambda: (9, "GPU"))) == []
    [problem] = tensor_parallel_problems(config, slots=lambda: (8, "GPU"))
    assert (
        "for each of 2 ranks, beside 1 that train, asks for 9 GPUs, but this machine has 8: lower "
        "it or the ranks of dag.groups" in str(problem)
    )


def test_nothing_leaves_a_gpu_on_a_machine_without_one() -> None:
    words = (
        "actor_rollout_ref.actor.offload_optimizer=true",
        "actor_rollout_ref.ref.offload=true",
    )
    cpus, gpus = (2, "CPU core"), (1, "GPU")

    def refused(*words: str, slots: tuple[int, str]) -> list[str]:
        config = parse_config([*NO_DRAWING, *words])
        problems = offload_problems(
            config.actor_rollout_ref, config.cluster, config.trainer, slots=lambda: slots
        )
        return [str(problem) for problem in problems]

    assert refused(*words, slots=cpus) == [
        f"{word} frees a GPU's memory, but this machine has no GPU: leave it out, or, for other "
        "machines, state the memory of their GPUs in trainer.gpu_memory_gib."
        for word in words
    ]
    assert refused(*words, slots=gpus) == []
    assert refused(*words, "cluster.address=10.0.0.1:6379", slots=cpus) == []
    assert refused(*words, "trainer.gpu_memory_gib=79", slots=cpus) == []
    assert refused(slots=cpus) == []


@pytest.fixture
def gpu_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Gpu | None]:
    """The GPU of a plan on a machine with an NVIDIA A10 and a GPU of 80 GB, or with none."""
    seen = (
        SimpleNamespace(name="NVIDIA H100", total_memory=79 * GIB),
        SimpleNamespace(name="NVIDIA A10", total_memory=22 * GIB),
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", seen.__getitem__)

    def planned(*words: str, slots: tuple[int, str] = (2, "GPU")) -> Gpu | None:
        config = parse_config([*NO_DRAWING, *words])
        return planned_gpu(config.cluster, config.trainer, slots=lambda: slots)

    return planned


def test_a_smaller_gpu_of_this_machine_bounds_the_stated_memory(
    gpu_of: Callable[..., Gpu | None],
) -> None:
    a10 = Gpu(22 * GIB, "this machine's NVIDIA A10")
    assert gpu_of() == a10
    assert gpu_of("trainer=gpu_libero_one") == a10


def test_the_stated_memory_lowers_that_of_the_gpu(gpu_of: Callable[..., Gpu | None]) -> None:
    stated = gpu_of("trainer.gpu_memory_gib=16")
    assert stated == Gpu(16 * GIB)


def test_for_other_machines_the_stated_memory_is_used_alone(
    gpu_of: Callable[..., Gpu | None],
) -> None:
    stated, address = "trainer.gpu_memory_gib=79", "cluster.address=10.0.0.1:6379"
    for words, slots in (((stated,), (4, "CPU core")), ((stated, address), (2, "GPU"))):
        gpu = gpu_of(*words, slots=slots)
        assert gpu is not None and gpu.memory_bytes == 79 * GIB
    assert gpu_of(slots=(4, "CPU core")) is None
    assert gpu_of(address) is None


def compiled(*overrides: str, compilers: bool) -> list[str]:
    config = parse_config([*NO_DRAWING, *overrides])
    policy = config.actor_rollout_ref
    problems = compile_problems(
        policy.actor, policy.rollout, config.dag, compilers=lambda: compilers
    )
    return [str(problem) for problem in problems]


def test_blocks_are_compiled_where_a_compiler_is_and_vllm_does_not_compile() -> None:
    wanted = "actor_rollout_ref.actor.use_torch_compile=true"
    vllm = ("rollout=vllm", "actor_rollout_ref.rollout.mode")
    assert compiled(compilers=False) == []
    assert compiled(wanted, compilers=True) == []
    assert compiled(wanted, vllm[0], f"{vllm[1]}=async", compilers=True) == []
    assert compiled(wanted, vllm[0], *SEPARATE, compilers=True) == []
    [without_compiler] = compiled(wanted, compilers=False)
    assert "g++" in without_compiler
    for in_the_process in ("sync", "null"):
        [beside_vllm] = compiled(wanted, vllm[0], f"{vllm[1]}={in_the_process}", compilers=True)
        assert f"set {vllm[1]}=async" in beside_vllm
