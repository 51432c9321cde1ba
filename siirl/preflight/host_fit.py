"""Refuses a job that needs far more than the memory of this machine, with the settings that would
fit.

`siirl.preflight.memory` and, for ranks on CPUs, `siirl.preflight.cpu_ranks` compute the memory. The
estimate may be wrong by `ROUGHLY`; a smaller excess is a warning of the plan. Left out: memory of
other machines, and simulators and images, which are refused first (`simulation_problems`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.domains import VLLM
from siirl.params.key_names import ACTOR, ROLLOUT
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.cpu_ranks import cpu_ranks_memory, cpu_table, saves_during_training
from siirl.preflight.fitting_settings import (
    Problems,
    Setting,
    Ways,
    adapters,
    changed,
    halved,
    remedy,
    settings_of_a_rank,
)
from siirl.preflight.memory import ROUGHLY, Parts, size_text, total, training_memory
from siirl.preflight.rank_memory import model_shape
from siirl.preflight.rank_table import TRAINING_RANK


@dataclass(frozen=True)
class RunMemory:
    """Host memory of a run."""

    parts: Parts
    kind: str = "run"

    @property
    def size(self) -> float:
        """Bytes of all parts."""
        return total(self.parts)


def run_memory(
    config: SiiRLArguments,
    spec: EnvSpec,
    *,
    on_gpu: bool,
    with_critic: bool,
    sends: bool | None = None,
) -> Parts:
    """Host memory of a run.

    Args:
        config: Configuration of the run, or of an agent group.
        spec: Spec of its environment.
        on_gpu: Whether ranks have GPUs.
        with_critic: Whether it trains a critic.
        sends: The run's `sends_weights`; None: that of `config`.
    """
    ranks = None if on_gpu else cpu_ranks_memory(config, spec, with_critic=with_critic, sends=sends)
    return training_memory(config, spec, models=1 + with_critic, ranks=ranks, sends=sends)


def host_problems(
    config: SiiRLArguments,
    spec: EnvSpec,
    *,
    total_memory_bytes: float,
    on_gpu: bool,
    with_critic: bool = False,
    problems: Problems = lambda config, named: (),
    sends: bool | None = None,
) -> list[SiirlError]:
    """Refuse a job of this machine that needs more than `ROUGHLY` times its memory.

    Args:
        config: See `run_memory`.
        spec: See `run_memory`.
        total_memory_bytes: Memory of this machine.
        on_gpu: See `run_memory`.
        with_critic: See `run_memory`.
        problems: Finds other problems, of which no remedy may make new ones.
        sends: See `run_memory`.
    """

    def needs(setting: Setting, kind: str | None = None) -> RunMemory:
        wanted = changed(config, setting)
        return RunMemory(
            run_memory(wanted, spec, on_gpu=on_gpu, with_critic=with_critic, sends=sends)
        )

    needed = needs({})
    if config.cluster.address is not None or needed.size <= ROUGHLY * total_memory_bytes:
        return []
    known = set(map(str, problems(config, ())))
    at_least = not on_gpu and _lower_bound(config, spec, with_critic=with_critic)
    told = remedy(
        list(_settings(config, spec, on_gpu=on_gpu, with_critic=with_critic)),
        fit="These settings may fit" if at_least else "These settings fit",
        needs=needs,
        fits=lambda run: run is not None and run.size <= total_memory_bytes,
        accepted=lambda setting: known.issuperset(
            map(str, problems(changed(config, setting), setting))
        ),
        larger="a machine with more memory",
    )
    largest = sorted(needed.parts, key=lambda part: part[1], reverse=True)
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in largest if size)
    amount = f"{'at least' if at_least else 'about'} {size_text(needed.size)}"
    return [
        ConfigError(
            f"The job needs {amount} of memory ({parts}), but this machine has "
            f"{size_text(total_memory_bytes)}. {told}"
        )
    ]


def _lower_bound(config: SiiRLArguments, spec: EnvSpec, *, with_critic: bool) -> bool:
    """Whether the memory of a training rank leaves out what an unknown architecture takes."""
    table = cpu_table(config, spec, with_critic=with_critic, kind=TRAINING_RANK)
    return table.lower_bound


def _settings(
    config: SiiRLArguments, spec: EnvSpec, *, on_gpu: bool, with_critic: bool
) -> Iterator[Ways]:
    """Settings that save memory of the host, by kind."""
    trainer, policy = config.trainer, config.actor_rollout_ref
    if trainer.async_save and saves_during_training(trainer):
        yield [{"trainer.async_save": False}]
    if on_gpu:
        if policy.actor.offload_optimizer:
            yield [{f"{ACTOR}.offload_optimizer": False}]
        if policy.ref.offload:
            yield [{"actor_rollout_ref.ref.offload": False}]
        if policy.rollout.name == VLLM and policy.rollout.sleep:
            yield [{f"{ROLLOUT}.sleep": False}]
        return
    shape = model_shape(policy.model)
    yield from settings_of_a_rank(config, spec, shape=shape, with_critic=with_critic)
    if sizes.ranks(trainer) > 1 and not sizes.separate(config.dag):
        yield halved("trainer.n_gpus_per_node", trainer.n_gpus_per_node)
    yield from adapters(config)
