"""Refuses a job whose rank does not fit its GPU, with the settings that would fit.

`siirl.preflight.rank_memory` computes the memory.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.build import as_text
from siirl.params.domains import is_text
from siirl.params.key_names import ACTOR, MODEL, ROLLOUT
from siirl.params.sizes import GIB
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.machine import Gpu
from siirl.preflight.memory import Parts
from siirl.preflight.model_shapes import DECODERS, ModelShape
from siirl.preflight.policy_memory import compute_bytes, recomputes
from siirl.preflight.rank_memory import model_shape, rank_memory
from siirl.preflight.rank_table import RANK, RankMemory

Setting = Mapping[str, Any]
"""Values of keys that are changed together."""
Ways = Sequence[Setting]
"""Settings of the same keys, from the one that changes least to the one that saves most."""
Problems = Callable[[SiiRLArguments, Collection[str]], Collection[SiirlError]]
"""What keeps a job from starting if the command line names these keys."""
USABLE = 0.9  # share of a GPU, vLLM's default; the rest covers memory that is left out here
LORA_RANK = 32  # of OpenVLA-OFT's own fine-tuning (arXiv 2502.19645, appendix)
MOST_RANKS = 64  # eight machines of eight GPUs: limit of a proposed remedy
NO_TABLE = (
    "its memory is not computed: that needs a folder with the safetensors files of a model that "
    f"siirl reads, or the config.json of an OpenVLA or of a dense decoder ({', '.join(DECODERS)})"
)
LOWER_BOUND = "a lower bound, without the activations of an unknown architecture"
FEW_CHUNKS = 8  # observations of a pass: 3,288 places of OpenVLA-OFT, enough to fill a GPU


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
    remedy = _remedy(kinds, fit=fit, needs=needs, fits=fits, accepted=accepted)
    room = f"trainer.gpu_memory_gib={gpu.memory_bytes / GIB:g}"
    if gpu.name is not None:
        room = f"{gpu.name} has {gib(gpu.memory_bytes)}"
    return [
        ConfigError(
            f"A {table.kind} needs {_amount(table, needed)} of GPU memory in its {phase} "
            f"({_listed(largest)}), but {room}, of which the plan may use {USABLE:.0%}. {remedy}"
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


def _remedy(
    kinds: Sequence[Ways],
    *,
    fit: str,
    needs: Callable[..., RankMemory | None],
    fits: Callable[[RankMemory | None], bool],
    accepted: Callable[[Setting], bool],
) -> str:
    """Of each kind the first setting that fits alone; if there is none, a setting of several kinds
    that fits; if there is none either, those that change the table of a rank that does not fit.
    """

    def works(setting: Setting) -> bool:
        return fits(needs(setting)) and accepted(setting)

    alone = [_words(way) for ways in kinds for way in [*filter(works, ways)][:1]]
    if alone:
        return f"{fit}: {'; or '.join(alone)}."
    together: list[Setting] = []
    for ways in kinds:
        others = together
        together = [*others, {}]
        for way in ways:
            if accepted(_joined([*others, way])):
                together = [*others, way]
                if fits(needs(_joined(together))):
                    return f"{fit}: {_words(_weakened(together, kinds, works))}."
    least = needs(_joined(together))
    assert least is not None  # an unknown table fits
    used = []
    for place, way in enumerate(together):
        rest = [*together[:place], *together[place + 1 :]]
        if needs(_joined(rest), least.kind) != least:
            used.append(way)
    if not used:
        return "Use a smaller model, or GPUs with more memory."
    return (
        f"Not even {_words(_joined(used))} makes a {least.kind} fit: use a smaller model, or GPUs "
        "with more memory."
    )


def _weakened(
    together: Sequence[Setting], kinds: Sequence[Ways], works: Callable[[Setting], bool]
) -> Setting:
    """Settings that work `together`, each left out or replaced by the first of its kind with which
    they still do.
    """
    chosen = list(together)
    for place, ways in enumerate(kinds[: len(chosen)]):
        tried = ([*chosen[:place], way, *chosen[place + 1 :]] for way in ({}, *ways))
        chosen = next(each for each in tried if works(_joined(each)))
    return _joined(chosen)


def _joined(settings: Sequence[Setting]) -> Setting:
    return {key: value for setting in settings for key, value in setting.items()}


def _settings(
    config: SiiRLArguments, spec: EnvSpec, *, shape: ModelShape | None, with_critic: bool
) -> Iterator[Ways]:
    """Settings that save memory, by kind."""
    text, episode_steps = is_text(spec), spec.max_episode_steps
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    rollout = config.actor_rollout_ref.rollout
    row = config.data.max_prompt_length + config.data.max_response_length
    if not recomputes(model, text=text):
        yield [{f"{MODEL}.gradient_checkpointing" if text else f"{MODEL}.options.recompute": True}]
    if actor.micro_batch_tokens is not None and actor.micro_batch_tokens > row:
        yield _halved(f"{ACTOR}.micro_batch_tokens", actor.micro_batch_tokens, least=row)
    if actor.micro_batch_tokens is actor.micro_batch_chunks is None:
        if actor.micro_batch_size > 1:
            yield _halved(f"{ACTOR}.micro_batch_size", actor.micro_batch_size)
        if with_critic and (config.critic.micro_batch_size or 1) > 1:
            yield _halved("critic.micro_batch_size", config.critic.micro_batch_size or 1)
    if not text and (actor.micro_batch_chunks or FEW_CHUNKS + 1) > FEW_CHUNKS:
        whole = actor.micro_batch_size * ceil(episode_steps / sizes.actions_of_a_pass(model))
        chunks = actor.micro_batch_chunks or whole
        yield _halved(f"{ACTOR}.micro_batch_chunks", chunks, least=FEW_CHUNKS)
    if shape is not None and rollout.name == "vllm":
        token = shape.decoder.token_bytes(compute_bytes(model)) if shape.is_known else 0
        least = max(1, ceil(row * token / GIB))  # vLLM can start if one row fits
        if rollout.kv_cache_gib > least:
            yield _halved(f"{ROLLOUT}.kv_cache_gib", int(rollout.kv_cache_gib), least=least)
    if rollout.name == "hf":
        yield _fewer_episodes(config)
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
    if model.lora.rank == 0:
        yield [{f"{MODEL}.lora.rank": LORA_RANK}]


def _halved(key: str, value: int, *, least: int = 1) -> Ways:
    """A key's value halved again and again, down to `least`: the first that fits is the largest."""
    ways: list[Setting] = []
    while value // 2 > least:
        value //= 2
        ways.append({key: value})
    return [*ways, {key: least}]


def _fewer_episodes(config: SiiRLArguments) -> Ways:
    """Fewer environments of a server, and then fewer servers: each has keys and values."""
    ways: list[dict[str, Any]] = []
    each, servers = config.env.envs_per_server, config.env.num_servers
    while each > 1:
        each //= 2
        ways.append({"env.envs_per_server": each})
    fewest = ways[-1] if ways else {}
    while servers // 2 >= sizes.rollout_ranks(config.trainer, config.dag):
        servers //= 2
        ways.append({**fewest, "env.num_servers": servers})
    return ways


def _words(setting: Setting) -> str:
    """A setting as on the command line."""
    return " ".join(f"{key}={as_text(value)}" for key, value in setting.items())


def changed(config: SiiRLArguments, setting: Setting) -> SiiRLArguments:
    """A copy of `config` with other values of some keys."""
    result = copy.deepcopy(config)
    for place, value in setting.items():
        *groups, key = place.split(".")
        group: Any = result
        for name in groups:
            group = getattr(group, name)
        if isinstance(group, dict):
            group[key] = value
        else:
            setattr(group, key, value)
    return result
