"""Host memory of the models of ranks on CPUs, computed from the table of a rank (`rank_memory`).

    for each kind of rank, of which there are `count`
        the table of a rank, as on a GPU, with what a host holds besides (`cpu_table`)
        count x (the parts held throughout + those of the largest phase)

On a host nothing is moved away: offloaded tensors, a sleeping vLLM and an idle encoder take the
same memory. Ranks of a kind are in the same phase, because they train in lockstep. A policy without
a table counts by its number of weights, and its passes like those of the shipped policy.

The C library keeps blocks of less than 32 MiB that were freed (malloc's M_MMAP_THRESHOLD), between
others that are in use. With 61 million weights on one rank, that was 390 MiB of 2473: as much less
were resident with a threshold of 64 KiB.

Left out: a copy that is written more slowly than the next rollout lasts, which would be in memory
in the update too.
"""

import copy
import dataclasses
from collections import defaultdict

from envs.base import EnvSpec
from siirl.params import sizes
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.memory import CHECKPOINT, Parts, policy_parameters, trained_parameters
from siirl.preflight.model_shapes import unknown_shape
from siirl.preflight.rank_memory import encoder_bytes, rank_memory
from siirl.preflight.rank_table import (
    GRADIENTS,
    MOMENTS,
    OF_CRITIC,
    ROLLOUT,
    ROLLOUT_RANK,
    TRAINING_RANK,
    UPDATE,
    WEIGHTS,
    RankMemory,
)

KEPT = "freed blocks"
KEPT_SHARE = 0.4  # of what passes take besides gradients, by the runs of benchmarks/memory_plan.py
LEAST_PASSES_BYTES = 200e6  # passes of the shipped policy, of 2 million weights


def cpu_ranks_memory(
    config: SiiRLArguments, spec: EnvSpec, *, with_critic: bool = False, sends: bool | None = None
) -> Parts:
    """Bytes of the models of all ranks, by name; the arguments are those of `rank_memory`."""
    trainer, dag = config.trainer, config.dag
    kinds: dict[str | None, int] = {None: sizes.ranks(trainer)}
    if sizes.separate(dag):
        kinds = {
            TRAINING_RANK: sizes.training_ranks(trainer, dag),
            ROLLOUT_RANK: sizes.rollout_ranks(trainer, dag),
        }
    found: defaultdict[str, float] = defaultdict(float)
    for kind, count in kinds.items():
        table = cpu_table(config, spec, with_critic=with_critic, kind=kind, sends=sends)
        phase, _ = table.peak
        for name, size in (*table.held, *dict(table.phases)[phase]):
            found[name] += count * size
    return tuple(found.items())


def cpu_table(
    config: SiiRLArguments,
    spec: EnvSpec,
    *,
    with_critic: bool = False,
    kind: str | None = None,
    sends: bool | None = None,
) -> RankMemory:
    """The table of a rank on CPUs; the arguments are those of `rank_memory`."""
    model = config.actor_rollout_ref.model
    parameters = policy_parameters(model)
    table = rank_memory(
        _staying(config),
        spec,
        with_critic=with_critic,
        kind=kind,
        sends=sends,
        assumed=unknown_shape(parameters, frozen=parameters - trained_parameters(model)),
    )
    assert table is not None  # a shape is assumed
    phases = {
        name: tuple(part for part in parts if part[0] != "encoder") for name, parts in table.phases
    }
    held = table.held
    passes = max(
        sum(size for name, size in parts if name != GRADIENTS)
        for phase, parts in (*phases.items(), (UPDATE, ()))
        if phase.endswith(UPDATE)
    )
    if passes:
        held += ((KEPT, KEPT_SHARE * passes),)
    if table.lower_bound and UPDATE in phases:
        phases[UPDATE] += (("activations", LEAST_PASSES_BYTES),)
    encoder = encoder_bytes(_staying(config).reward)
    if encoder and kind != TRAINING_RANK:
        held += (("encoder", encoder),)
    saved = _copy_of_checkpoint(table, config)
    if saved and kind != ROLLOUT_RANK:
        part = ((CHECKPOINT, saved),)
        phases["save"] = part
        if saves_during_training(config.trainer):
            # training ranks that do not wait for the next rollout go on with the next update
            waits = kind is None or config.trainer.max_staleness == 0
            beside = ROLLOUT if waits else UPDATE
            phases[beside] += part
    return dataclasses.replace(table, held=held, phases=tuple(phases.items()))


def saves_during_training(trainer: TrainingArguments) -> bool:
    """Whether a step may follow a checkpoint."""
    every = trainer.save_freq
    return every > 0 and (trainer.total_steps is None or every < trainer.total_steps)


def _copy_of_checkpoint(table: RankMemory, config: SiiRLArguments) -> float:
    """Bytes of the copies from which a thread of a rank writes its part of a checkpoint: weights,
    the first time also frozen ones, and moments. Replicas of shards are written once.
    """
    ranks = sizes.training_ranks(config.trainer, config.dag)
    sharing = config.actor_rollout_ref.actor.fsdp_size or ranks
    states = sum(
        size for name, size in table.held if name.removeprefix(OF_CRITIC) in (WEIGHTS, MOMENTS)
    )
    return config.trainer.async_save * states * sharing / ranks


def _staying(config: SiiRLArguments) -> SiiRLArguments:
    """`config` without the settings that spare the memory of a GPU."""
    found = copy.deepcopy(config)
    settings = found.actor_rollout_ref
    settings.actor.offload_optimizer = settings.ref.offload = settings.rollout.sleep = False
    settings.rollout.tensor_model_parallel_size = 1
    found.reward.encoder_device = "rank"
    found.reward.encoder_dtype = found.reward.encoder_dtype or "float32"
    return found
