"""Refuses a job whose rank does not fit its GPU, with the settings that would fit.

`siirl.preflight.rank_memory` computes the memory.
"""

from collections.abc import Iterator

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.key_names import ACTOR, ROLLOUT
from siirl.params.sizes import GIB
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.fitting_settings import (
    Problems,
    Setting,
    Ways,
    adapters,
    changed,
    remedy,
    settings_of_a_rank,
)
from siirl.preflight.machine import Gpu
from siirl.preflight.memory import Parts
from siirl.preflight.model_shapes import DECODERS, ModelShape
from siirl.preflight.rank_memory import model_shape, rank_memory
from siirl.preflight.rank_table import RANK, RankMemory

USABLE = 0.9  # share of a GPU, vLLM's default; the rest covers memory that is left out here
MOST_RANKS = 64  # eight machines of eight GPUs: limit of a proposed remedy
NO_TABLE = (
    "its memory is not computed: that needs a folder with the safetensors files of a model that "
    f"siirl reads, or the config.json of an OpenVLA or of a dense decoder ({', '.join(DECODERS)})"
)
LOWER_BOUND = "a lower bound, without the activations of an unknown architecture"


def gpu_problems(
    config: SiiRLArguments,
    spec: EnvSpec,
    *,
    gpu: Gpu | None,
    with_critic: bool = False,
    shape: ModelShape | None = None,
    problems: Problems = lambda config, named: (),
    sends: bool | None = None,
) -> list[SiirlError]:
    """Refuse a job that does not fit its GPUs, with the settings that would and that are accepted.

    Args:
        config: Configuration of the job.
        spec: Spec of the environment.
        gpu: The GPU of a rank; None without a GPU, or if its memory is unknown.
        with_critic: Whether the job trains a critic.
        shape: Shape of the model; None: read it from `actor_rollout_ref.model.path`.
        problems: Finds other problems, of which no remedy may make new ones.
        sends: The run's `sends_weights`; None: that of `config`.
    """
    if gpu is None:
        return []
    shape = model_shape(config.actor_rollout_ref.model) if shape is None else shape

    def needs(setting: Setting, kind: str | None = None) -> RankMemory | None:
        wanted = changed(config, setting)
        return rank_memory(
            wanted, spec, with_critic=with_critic, shape=shape, kind=kind, sends=sends
        )

    def fits(table: RankMemory | None) -> bool:
        return table is None or table.peak[1] <= USABLE * gpu.memory_bytes

    table = needs({})
    if table is None or fits(table):
        return []
    known = set(map(str, problems(config, ())))

    def accepted(setting: Setting) -> bool:
        return known.issuperset(map(str, problems(changed(config, setting), setting)))

    phase, needed = table.peak
    parts = (*table.held, *dict(table.phases)[phase])
    largest = tuple(sorted(parts, key=lambda part: part[1], reverse=True))
    kinds = list(_settings(config, spec, shape=shape, with_critic=with_critic))
    # a lower bound that fits is no promise
    fit = "These settings may fit" if table.lower_bound else "These settings fit"
    told = remedy(
        kinds,
        fit=fit,
        needs=needs,
        fits=fits,
        accepted=accepted,
        larger="GPUs with more memory",
    )
    room = f"trainer.gpu_memory_gib={gpu.memory_bytes / GIB:g}"
    if gpu.name is not None:
        room = f"{gpu.name} has {gib(gpu.memory_bytes)}"
    return [
        ConfigError(
            f"A {table.kind} needs {_amount(table, needed)} of GPU memory in its {phase} "
            f"({_listed(largest)}), but {room}, of which the plan may use {USABLE:.0%}. {told}"
        )
    ]


def table_lines(table: RankMemory | None, *, gpu: Gpu) -> list[tuple[str, str]]:
    """Topics and texts for the plan: the peak with the memory held throughout, then each phase; or
    that there is no table.
    """
    if table is None:
        return [("a GPU", NO_TABLE)]
    phase, peak = table.peak
    unknown = f"; not computed: {', '.join(table.left_out)}" if table.left_out else ""
    of_group = "" if table.kind == RANK else f"of a {table.kind}, which needs most: "
    throughout = f"; throughout {_listed(table.held)}" if table.held else ""
    how = LOWER_BOUND if table.lower_bound else "estimated"
    first = (
        f"{of_group}{_amount(table, peak)} of {gib(gpu.memory_bytes)} in its {phase}, {how}"
        f"{throughout}{unknown}"
    )
    phases = [("", f"{name}: {_listed(parts)}") for name, parts in table.phases if parts]
    return [("a GPU", first), *phases]


def gib(size: float) -> str:
    """Bytes as `1.5 GiB`, the unit of GPU memory sizes."""
    return f"{size / GIB:.1f} GiB"


def _amount(table: RankMemory, size: float) -> str:
    return f"{'at least' if table.lower_bound else 'about'} {gib(size)}"


def _listed(parts: Parts) -> str:
    return ", ".join(f"{name} {gib(size)}" for name, size in parts)


def _settings(
    config: SiiRLArguments, spec: EnvSpec, *, shape: ModelShape | None, with_critic: bool
) -> Iterator[Ways]:
    """Settings that save memory of a GPU, by kind."""
    yield from settings_of_a_rank(config, spec, shape=shape, with_critic=with_critic)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    # more ranks of separate groups need other numbers in dag.groups
    for machines in () if sizes.separate(config.dag) else (1, 2, 4, 8):
        if sizes.ranks(config.trainer) < 8 * machines <= MOST_RANKS:
            several = {"trainer.nnodes": machines} if machines > 1 else {}
            on_ray = {"cluster.mode": "ray"} if config.cluster.mode == "local" else {}
            yield [{**on_ray, **several, "trainer.n_gpus_per_node": 8}]
            break
    if shape is not None and rollout.name == "vllm":
        apart = sizes.vllm_apart(config.trainer, config.dag, rollout)
        of_vllm = {} if apart else {f"{ROLLOUT}.mode": "async"}
        yield [
            {**of_vllm, f"{ROLLOUT}.tensor_model_parallel_size": gpus}
            for gpus in (2, 4, 8)
            if gpus > rollout.tensor_model_parallel_size
            and not (shape.is_known and shape.decoder.heads % gpus)
        ]
    if not actor.offload_optimizer:
        yield [{f"{ACTOR}.offload_optimizer": True}]
    yield from adapters(config)
