"""Memory of a rank's GPU by what holds it, and the refusal of a job that does not fit.

FSDP2 shards weights, gradients and moments evenly over the ranks, and gathers one block at a time
in the type of the passes. A single rank computes under autocast, which keeps copies of trained
weights. A step has three phases, of which only one holds its memory at a time: rollout, the passes
of an update, and the optimiser's step. The table shows each, and the largest counts.

Left out: a critic; a reward model; fragmentation and the CUDA context, for which `USABLE` leaves
room; models of unknown architecture (`siirl.preflight.model_shapes`), which have no table.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.domains import is_text
from siirl.params.paths import find
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.machine import GIB
from siirl.preflight.memory import Parts, total
from siirl.preflight.model_shapes import (
    QUESTION_LENGTH,
    Computing,
    ModelShape,
    openvla_places,
    read_shape,
)

Change = Callable[[SiiRLArguments], None]
USABLE = 0.9  # of a GPU, the share that vLLM takes by default; the rest is for what is left out
WEIGHT_BYTES, MOMENTS_BYTES = 4, 8  # float32; Adam's first and second moment
# AdamW's update of many tensors at once makes one temporary of their size
OPTIMISER_BYTES = 4
LORA_RANK = 32  # of OpenVLA-OFT's own fine-tuning (arXiv 2502.19645, appendix)
MOST_RANKS = 64  # eight machines of eight GPUs: the most that a remedy proposes
FEW_CHUNKS = 8  # observations of a pass: 3,288 places of OpenVLA-OFT, enough to fill a GPU
OPENVLA_CHUNK = 8  # actions, as published for LIBERO (arXiv 2502.19645, section V)


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank's GPU by name, in the parts of a step."""

    held: Parts
    """Throughout the step."""
    phases: tuple[tuple[str, Parts], ...]
    """Bytes held in addition, by phase."""

    @property
    def peak(self) -> tuple[str, float]:
        """The phase that needs most, and the bytes of the rank in it."""
        name, parts = max(self.phases, key=lambda phase: total(phase[1]))
        return name, total(self.held) + total(parts)


def rank_memory(
    config: SiiRLArguments,
    spec: EnvSpec,
    *,
    shape: ModelShape | None = None,
    on_gpu: bool = True,
) -> RankMemory | None:
    """The table of a rank; None for a model whose shape is unknown.

    Args:
        config: Of the job.
        spec: Of the environment.
        shape: Of the model; None: as in the folder of `actor_rollout_ref.model.path`.
        on_gpu: Whether AdamW moves many weights at once; on a CPU it moves one after the other.
    """
    shape = model_shape(config) if shape is None else shape
    if shape is None or bool(shape.images) == is_text(spec):
        return None
    adapters = _adapters(config, shape)
    trained = adapters or shape.parameters
    actor, reference = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref
    sharing = actor.fsdp_size or sizes.ranks(config)
    sharded = trained / sharing
    weights = (shape.parameters + adapters) / sharing
    moments = ("Adam", MOMENTS_BYTES * sharded)
    held = (
        ("weights", WEIGHT_BYTES * weights),
        *(() if actor.offload_optimizer else (moments,)),
        (
            "reference",
            WEIGHT_BYTES * weights * _has_own_reference(config) * (not reference.offload),
        ),
        ("acting copy", _acting_copy(config, shape)),
        *(() if _sleeps(config) else _generation(config, shape)),
    )
    copies = ("autocast's copies", _autocast_copies(config, shape))
    gradients = ("gradients", WEIGHT_BYTES * sharded)
    accumulated = WEIGHT_BYTES * (trained if actor.reduce_once and _in_group(config) else sharded)
    update = (
        ("gradients", accumulated),
        copies,
        ("gathered blocks", _gathered(config, shape)),
        ("activations", _activations(config, spec, shape)),
    )
    engine = _generation(config, shape) if _sleeps(config) else ()
    arriving = (moments,) if actor.offload_optimizer else ()
    temporary = OPTIMISER_BYTES * sharded if on_gpu else 0.0
    rollout = (*engine, copies, ("encoder", _encoder(config)))
    return RankMemory(
        held=_present(held),
        phases=(
            ("rollout", _present(rollout)),
            ("update", _present(update)),
            ("optimiser's step", _present((gradients, ("temporary", temporary), *arriving))),
        ),
    )


def model_shape(config: SiiRLArguments) -> ModelShape | None:
    """The shape of the model in `actor_rollout_ref.model.path`, or None."""
    path = config.actor_rollout_ref.model.path
    return None if path is None else read_shape(find(path), images=_images(config))


def gpu_problems(
    config: SiiRLArguments,
    spec: EnvSpec,
    *,
    gpu_bytes: float | None,
    shape: ModelShape | None = None,
) -> list[SiirlError]:
    """Refuse a job that does not fit its GPUs, with the settings that would.

    Args:
        config: Of the job.
        spec: Of the environment.
        gpu_bytes: Memory of a GPU; None: there is none, or it is unknown.
        shape: See `rank_memory`.
    """
    if gpu_bytes is None:
        return []
    shape = model_shape(config) if shape is None else shape
    table = rank_memory(config, spec, shape=shape)
    if table is None or table.peak[1] <= USABLE * gpu_bytes:
        return []
    phase, needed = table.peak
    parts = (*table.held, *dict(table.phases)[phase])
    largest = tuple(sorted(parts, key=lambda part: part[1], reverse=True))
    remedy = _remedy(config, spec, shape=shape, gpu_bytes=gpu_bytes)
    return [
        ConfigError(
            f"A rank needs about {gib(needed)} of GPU memory in its {phase} ({_listed(largest)}), and a GPU "
            f"has {gib(gpu_bytes)}, of which {USABLE:.0%} are planned with. {remedy}"
        )
    ]


def table_lines(table: RankMemory, *, gpu_bytes: float) -> list[tuple[str, str]]:
    """Topics and texts for the plan: the peak with what is held throughout, then each phase."""
    phase, peak = table.peak
    first = (
        f"about {gib(peak)} of {gib(gpu_bytes)} in its {phase}, estimated; throughout "
        f"{_listed(table.held)}"
    )
    phases = [("", f"{name}: {_listed(parts)}") for name, parts in table.phases if parts]
    return [("a GPU", first), *phases]


def gib(size: float) -> str:
    """Bytes as `1.5 GiB`, the unit in which GPUs are sold."""
    return f"{size / GIB:.1f} GiB"


def _listed(parts: Parts) -> str:
    return ", ".join(f"{name} {gib(size)}" for name, size in parts)


def _fits(
    config: SiiRLArguments, spec: EnvSpec, *, shape: ModelShape | None, gpu_bytes: float
) -> bool:
    table = rank_memory(config, spec, shape=shape)
    return table is not None and table.peak[1] <= USABLE * gpu_bytes


def _remedy(
    config: SiiRLArguments, spec: EnvSpec, *, shape: ModelShape | None, gpu_bytes: float
) -> str:
    """Every setting that fits alone, or else the first, the first two and so on, until they fit."""
    settings = list(_settings(config, spec, shape))
    alone = [
        words
        for words, change in settings
        if _fits(_changed(config, change), spec, shape=shape, gpu_bytes=gpu_bytes)
    ]
    if alone:
        return f"What fits: {'; or '.join(alone)}."
    changed, words = config, list[str]()
    for its_words, change in settings:
        changed = _changed(changed, change)
        words.append(its_words)
        if _fits(changed, spec, shape=shape, gpu_bytes=gpu_bytes):
            return f"What fits: {' '.join(words)}."
    even = f"Not even {' '.join(words)} makes it fit: " if words else ""
    return f"{even}take a smaller model, or GPUs with more memory."


def _settings(
    config: SiiRLArguments, spec: EnvSpec, shape: ModelShape | None
) -> Iterator[tuple[str, Change]]:
    """Settings that save memory, as they are written on a command line."""
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    rollout = config.actor_rollout_ref.rollout
    place = "actor_rollout_ref"
    if not _recomputes(config, text=is_text(spec)):
        key = (
            f"{place}.model.gradient_checkpointing=true"
            if is_text(spec)
            else f"{place}.model.options.recompute=true"
        )
        yield key, _recompute
    row = config.data.max_prompt_length + config.data.max_response_length
    if actor.micro_batch_tokens is not None and actor.micro_batch_tokens > row:
        yield f"{place}.actor.micro_batch_tokens={row}", lambda job: _set_tokens(job, row)
    if actor.micro_batch_tokens is actor.micro_batch_chunks is None and actor.micro_batch_size > 1:
        yield f"{place}.actor.micro_batch_size=1", _set_one_row
    if not is_text(spec) and (actor.micro_batch_chunks or FEW_CHUNKS + 1) > FEW_CHUNKS:
        yield f"{place}.actor.micro_batch_chunks={FEW_CHUNKS}", _set_few_chunks
    if shape is not None and rollout.name == "vllm":
        least = ceil(row * _token_bytes(config, shape) / GIB)  # vLLM starts if one row fits
        if rollout.kv_cache_gib > least:
            yield f"{place}.rollout.kv_cache_gib={least}", lambda job: _set_cache(job, least)
    ranks = sizes.ranks(config)
    for machines in (1, 2, 4, 8):
        if ranks < 8 * machines <= MOST_RANKS:
            several = f"trainer.nnodes={machines} " if machines > 1 else ""
            yield (
                f"{several}trainer.n_gpus_per_node=8",
                functools.partial(_set_ranks, machines=machines),
            )
            break
    if not actor.offload_optimizer:
        yield f"{place}.actor.offload_optimizer=true", _offload_moments
    if model.lora.rank == 0:
        yield f"{place}.model.lora.rank={LORA_RANK}", _adapt


def _changed(config: SiiRLArguments, change: Change) -> SiiRLArguments:
    changed = copy.deepcopy(config)
    change(changed)
    return changed


def _recompute(config: SiiRLArguments) -> None:
    config.actor_rollout_ref.model.gradient_checkpointing = True
    config.actor_rollout_ref.model.options["recompute"] = True


def _set_tokens(config: SiiRLArguments, tokens: int) -> None:
    config.actor_rollout_ref.actor.micro_batch_tokens = tokens


def _set_one_row(config: SiiRLArguments) -> None:
    config.actor_rollout_ref.actor.micro_batch_size = 1


def _set_few_chunks(config: SiiRLArguments) -> None:
    config.actor_rollout_ref.actor.micro_batch_chunks = FEW_CHUNKS


def _offload_moments(config: SiiRLArguments) -> None:
    config.actor_rollout_ref.actor.offload_optimizer = True


def _set_cache(config: SiiRLArguments, size_gib: int) -> None:
    config.actor_rollout_ref.rollout.kv_cache_gib = size_gib


def _set_ranks(config: SiiRLArguments, machines: int) -> None:
    config.trainer.nnodes, config.trainer.n_gpus_per_node = machines, 8


def _adapt(config: SiiRLArguments) -> None:
    config.actor_rollout_ref.model.lora.rank = LORA_RANK


def _present(parts: Parts) -> Parts:
    return tuple((name, size) for name, size in parts if size)


def _in_group(config: SiiRLArguments) -> bool:
    """Whether FSDP2 trains, not a single process under autocast."""
    return sizes.ranks(config) > 1 or config.trainer.force_process_group


def _computing(config: SiiRLArguments) -> Computing:
    if config.actor_rollout_ref.model.dtype == "float32":
        return Computing(compute=4, residual=4)
    return Computing(compute=2, residual=2 if _in_group(config) else 4)


def _adapters(config: SiiRLArguments, shape: ModelShape) -> int:
    rank = config.actor_rollout_ref.model.lora.rank
    return shape.adapter_parameters(rank) if rank else 0


def _has_own_reference(config: SiiRLArguments) -> bool:
    """Whether the KL reference is a separate copy of the weights, and not the base of adapters."""
    below = (
        config.actor_rollout_ref.model.lora.rank > 0 and config.actor_rollout_ref.ref.path is None
    )
    return sizes.needs_reference(config) and not below


def _acting_copy(config: SiiRLArguments, shape: ModelShape) -> float:
    """Whole weights that act, where training shards them; vLLM's are in `_generation`."""
    own = _in_group(config) and config.actor_rollout_ref.rollout.name != "vllm"
    return float(own * _computing(config).compute * shape.parameters)


def _autocast_copies(config: SiiRLArguments, shape: ModelShape) -> float:
    """Autocast keeps its copy of a trained weight for the whole pass, and none of a frozen one."""
    frozen = config.actor_rollout_ref.model.lora.rank > 0
    return 0.0 if frozen or not _computing(config).casts else 2.0 * shape.parameters


def _gathered(config: SiiRLArguments, shape: ModelShape) -> float:
    """Whole weights and gradients of FSDP2's units: what is beside the blocks throughout, the block
    at work and the next; a block's whole gradients, and again in float32 to be summed.
    """
    compute = _computing(config).compute
    trains_all = config.actor_rollout_ref.model.lora.rank == 0
    if not _in_group(config):
        # the block at work, whose frozen weights are cast
        return 0.0 if trains_all else float(compute * shape.largest_block)
    blocks = 2 * shape.largest_block
    if not config.actor_rollout_ref.actor.reshard_after_forward:
        blocks = shape.parameters - shape.other_parameters
    units = shape.other_parameters + blocks
    gradients = (shape.other_parameters + shape.largest_block) * trains_all
    return float(compute * units + (compute + 4) * gradients)


def _activations(config: SiiRLArguments, spec: EnvSpec, shape: ModelShape) -> float:
    """Activations of a micro-batch: those of every block, or the inputs of all and one block."""
    computing, text = _computing(config), is_text(spec)
    recomputes = _recomputes(config, text=text)
    places, observations = _places(config, spec, shape)
    counts = (*(observations * number for number in shape.images), places)
    kept = sum(
        stack.blocks
        * number
        * (stack.input_bytes(computing) if recomputes else stack.block_bytes(computing))
        for stack, number in zip(shape.stacks, counts, strict=True)
    )
    decoder = shape.decoder
    # gradients of gate, up and their product, and of the block's input
    working = places * (3 * computing.compute * decoder.hidden + 2 * decoder.input_bytes(computing))
    if recomputes:
        working += places * decoder.block_bytes(computing)
    return float(kept + working)


def _places(config: SiiRLArguments, spec: EnvSpec, shape: ModelShape) -> tuple[int, int]:
    """Places of the decoder, and observations, of a micro-batch of the longest rows."""
    actor, data = config.actor_rollout_ref.actor, config.data
    if is_text(spec):
        row = data.max_prompt_length + data.max_response_length
        return actor.micro_batch_tokens or actor.micro_batch_size * row, 0
    whole = actor.micro_batch_size * ceil(spec.max_episode_steps / OPENVLA_CHUNK)
    observations = actor.micro_batch_chunks or whole
    question = config.actor_rollout_ref.model.options.get("question_length", QUESTION_LENGTH)
    return observations * openvla_places(images=_images(config), question=question), observations


def _images(config: SiiRLArguments) -> int:
    return int(config.actor_rollout_ref.model.options.get("images", 1))


def _recomputes(config: SiiRLArguments, *, text: bool) -> bool:
    model = config.actor_rollout_ref.model
    return model.gradient_checkpointing if text else bool(model.options.get("recompute", True))


def _generation(config: SiiRLArguments, shape: ModelShape) -> Parts:
    """Keys and values of text engines, and vLLM's weights, of which each GPU holds its part."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == "vllm":
        compute = _computing(config).compute
        weights = compute * shape.parameters / rollout.tensor_model_parallel_size
        return (("vLLM's weights", weights), ("keys and values", rollout.kv_cache_gib * GIB))
    if rollout.name != "hf":
        return ()
    row = config.data.max_prompt_length + config.data.max_response_length
    at_once = ceil(sizes.slots(config) / sizes.ranks(config))
    return (("keys and values", float(at_once * row * _token_bytes(config, shape))),)


def _token_bytes(config: SiiRLArguments, shape: ModelShape) -> int:
    """Keys and values of a token in all blocks."""
    decoder = shape.decoder
    return 2 * decoder.blocks * decoder.key_width * _computing(config).compute


def _sleeps(config: SiiRLArguments) -> bool:
    """Whether the engine's memory is free while training computes; siirl's own drops its cache."""
    rollout = config.actor_rollout_ref.rollout
    return rollout.name != "vllm" or rollout.sleep


def _encoder(config: SiiRLArguments) -> float:
    """Weights of the video encoder, in bfloat16 unless asked otherwise; idle it is on the host."""
    reward = config.reward
    if (
        not sizes.needs_video(config.reward)
        or reward.encoder_device == "cpu"
        or reward.encoder is None
    ):
        return 0.0
    return _stored_bytes(reward.encoder) / (1 if reward.encoder_dtype == "float32" else 2)


def _stored_bytes(encoder: str) -> float:
    """Bytes of the encoder's files, whose weights are in float32; 0 where they are not here."""
    path = find(encoder)
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return float(sum(file.stat().st_size for file in files if file.is_file()))
