"""Estimates a job's memory (simulators, images, workers, weights) and checks it against the
machine; estimates the disk space of its checkpoints, videos and logs.

Training, evaluation and warm start use the same estimate.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from envs.base import IMAGES, UNMEASURED, EnvSpec
from siirl.dag_worker.manifest import KEPT_CHECKPOINTS
from siirl.errors import CheckpointError, ConfigError, SiirlError
from siirl.files.documents import read_object
from siirl.files.paths import find
from siirl.files.weight_files import CONFIG_FILE, parameters_in
from siirl.params import sizes
from siirl.params.agents import sends_weights
from siirl.params.data_args import DataArguments
from siirl.params.domains import VLLM
from siirl.params.env_args import EnvArguments
from siirl.params.model_args import ModelArguments
from siirl.params.policies import EXPERT_ONLY, FROZEN
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments

# of a worker process, by the runs of a tiny model in benchmarks/memory_plan.py
WORKER_BYTES = 535e6  # interpreter, torch, transformers, Ray
ADAPTERS_BYTES = 30e6  # peft's modules
COMPILER_BYTES = 90e6  # torch.compile's own modules and the code of a model's blocks, in a worker
VLLM_BYTES = 600e6  # vLLM's imports and buffers, in a process of its own or the rank's
RAY_BYTES = 830e6  # the driver process (430 MB) and Ray's own processes
NEW_POLICY_PARAMETERS = 2_200_000  # the tiny policy as it ships
BYTES_PER_PARAMETER = 4  # float32, of a policy that only acts
ROUGHLY = 1.5  # error factor of the estimate

Parts = tuple[tuple[str, float], ...]
"""Name and bytes of each part."""
PUBLISHED, IMAGES_PART = "weights for rollout ranks", "images"
"""The first one: in Ray's object store."""
SENT = "weights in transfer"
CHECKPOINT = "a checkpoint in writing"
MOMENTS_BYTES_PER_PARAMETER = 8  # Adam's two moments, in a checkpoint
# of a trained parameter: its weight in the shards and in the whole weights, and the moments
STORED_BYTES_PER_PARAMETER = 2 * BYTES_PER_PARAMETER + MOMENTS_BYTES_PER_PARAMETER
HALF_BYTES_PER_PARAMETER = 2  # bfloat16
# PyTorch rounds a block of pinned memory up to a power of two. vLLM keeps its weights in one block
# per tensor: Qwen2.5-7B takes 28 GB instead of 15.
PINNED_ROUNDING = 2
VIDEO_BYTES = 300e3  # a few seconds of 256x256 mp4
LOG_BYTES = 20e6
SHORTEST_STEP_S = 1.0  # lower bound with videos; max_minutes over it bounds their number


@dataclass(frozen=True)
class HeldEpisodes:
    """Number of episodes with images in memory at the same time."""

    count: int
    in_keys: str
    """The count, written with its configuration keys."""
    remedy: str
    """The keys to lower."""


def episodes_of_step(data: DataArguments, rollout: RolloutArguments) -> HeldEpisodes:
    """All rollouts of a training step."""
    prompts, group_size = data.train_batch_size, rollout.n
    keys = "data.train_batch_size x actor_rollout_ref.rollout.n"
    return HeldEpisodes(
        prompts * group_size,
        f"{keys} = {prompts} x {group_size} trajectories",
        "lower one of these two",
    )


def episodes_at_once(slots: int) -> HeldEpisodes:
    """Episodes that run at once in `slots` environments; an evaluation frees each at its end."""
    return HeldEpisodes(
        slots,
        f"{counted(slots, 'episode')} at the same time",
        "lower env.num_servers or env.envs_per_server",
    )


def episodes_of_training(config: SiiRLArguments) -> HeldEpisodes:
    """Episodes of a step or of an evaluation, whichever is larger; the two never overlap."""
    return max(
        episodes_of_step(config.data, config.actor_rollout_ref.rollout),
        episodes_at_once(
            sizes.slots(config.env, ranks=sizes.rollout_ranks(config.trainer, config.dag))
        ),
        key=lambda held: held.count,
    )


def image_bytes_per_trajectory(model: ModelArguments, env_spec: EnvSpec) -> float:
    """Image bytes of a full-length trajectory: uint8, one set of cameras per chunk."""
    space = getattr(env_spec.observation_space, "spaces", {}).get(IMAGES)
    if space is None:
        return 0.0
    chunks = math.ceil(env_spec.max_episode_steps / sizes.actions_of_a_pass(model))
    return chunks * float(math.prod(space.shape))


def training_memory(
    config: SiiRLArguments,
    env_spec: EnvSpec,
    *,
    models: int,
    ranks: Parts | None = None,
    sends: bool | None = None,
) -> Parts:
    """Host memory of a training run.

    Args:
        config: Configuration of the run, or of an agent group.
        env_spec: Its environment.
        models: 2 with a critic, else 1.
        ranks: Memory of ranks on CPUs (`siirl.preflight.cpu_ranks`); None: they have GPUs.
        sends: The run's `sends_weights`; None: that of `config`.
    """
    sends = sends_weights(config) if sends is None else sends
    policy = config.actor_rollout_ref
    images = image_bytes_per_trajectory(policy.model, env_spec)
    return (
        *_processes(config, env_spec),
        *(_left_by_gpus(config, models=models) if ranks is None else ranks),
        *_vllm(config),
        *(_sent if sends else _published)(config),
        (IMAGES_PART, episodes_of_training(config).count * images),
    )


def _vllm(config: SiiRLArguments) -> Parts:
    """Host memory of vLLM's imports and buffers."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != VLLM:
        return ()
    return (("vLLM", sizes.rollout_ranks(config.trainer, config.dag) * VLLM_BYTES),)


def _published(config: SiiRLArguments) -> Parts:
    """Weights that separate rollout ranks fetch from Ray's object store: frozen ones once, and
    those that change for each step that may act, for the next, and for one that Ray has not freed
    yet (`siirl.dag_worker.separate.published_weights`). /dev/shm grew by three times 199 MB with a
    model of 50 million weights.
    """
    policy, trainer, dag = config.actor_rollout_ref, config.trainer, config.dag
    if not sizes.separate(dag):
        return ()
    steps = 1 if sizes.streams(trainer, dag, policy.rollout) else 1 + trainer.max_staleness
    changing = _changing_parameters(policy.model, models=1)
    width = _acting_width(config)
    frozen = _frozen_bytes(policy.model, models=1, width=width)
    return ((PUBLISHED, frozen + (steps + 2) * width * changing),)


def _sent(config: SiiRLArguments) -> Parts:
    """Weights on their way to rollout ranks: a bucket on each side, and in a stream those that
    vLLM has not taken yet (`siirl.dag_worker.separate.arriving_weights`).
    """
    policy, trainer, dag = config.actor_rollout_ref, config.trainer, config.dag
    ranks, width = sizes.rollout_ranks(trainer, dag), _acting_width(config)
    weights = width * policy_parameters(policy.model)
    buckets = (1 + ranks) * min(float(sizes.WEIGHT_BUCKET_BYTES), weights)
    held = sizes.streams(trainer, dag, policy.rollout) and policy.rollout.name == VLLM
    return ((SENT, buckets + ranks * weights * held),)


def _acting_width(config: SiiRLArguments) -> int:
    """Bytes of a weight as it acts on a separate rollout rank."""
    policy = config.actor_rollout_ref
    narrow = sizes.trains_sharded(config.trainer, config.dag) or policy.rollout.name == VLLM
    return _compute_width(policy.model) if narrow else BYTES_PER_PARAMETER


def _compute_width(model: ModelArguments) -> int:
    """Bytes of a weight in the type of the passes."""
    return BYTES_PER_PARAMETER if model.dtype == "float32" else HALF_BYTES_PER_PARAMETER


def _left_by_gpus(config: SiiRLArguments, *, models: int) -> Parts:
    """Host memory with GPUs: the copy from which a checkpoint is written during training,
    offloaded tensors, and the weights of sleeping vLLMs, a copy for each rank.
    """
    policy = config.actor_rollout_ref
    parameters = policy_parameters(policy.model)
    changing = _changing_parameters(policy.model, models=models)
    moments = MOMENTS_BYTES_PER_PARAMETER * changing
    # frozen weights are copied for the first checkpoint
    copied = BYTES_PER_PARAMETER * changing + _frozen_bytes(policy.model, models=models) + moments
    copied *= config.trainer.async_save and config.trainer.save_freq > 0
    offloaded = (
        moments * policy.actor.offload_optimizer
        + BYTES_PER_PARAMETER * parameters * policy.ref.offload
    )
    rollout = policy.rollout
    sleeps = rollout.name == VLLM and rollout.sleep and not sizes.separate(config.dag)
    rounded = PINNED_ROUNDING * _compute_width(policy.model) * parameters
    asleep = sleeps * sizes.ranks(config.trainer) * rounded
    parts = (
        (CHECKPOINT, float(copied)),
        ("offloaded", float(offloaded)),
        ("vLLM asleep", float(asleep)),
    )
    return tuple(part for part in parts if part[1])


def evaluation_memory(config: SiiRLArguments, env_spec: EnvSpec) -> Parts:
    """Memory of an evaluation, or of a warm start without its demonstrations."""
    return (
        *_processes(config, env_spec),
        ("policy", BYTES_PER_PARAMETER * policy_parameters(config.actor_rollout_ref.model)),
        (
            "images",
            sizes.slots(config.env, ranks=sizes.rollout_ranks(config.trainer, config.dag))
            * image_bytes_per_trajectory(config.actor_rollout_ref.model, env_spec),
        ),
    )


def simulation_problems(
    config: SiiRLArguments, env_spec: EnvSpec, held: HeldEpisodes, *, total_memory_bytes: float
) -> list[SiirlError]:
    """Refuse simulators and images (always in host memory) far beyond this machine's memory.

    A smaller excess is a warning (`shortage`).
    """
    servers = sizes.servers(config.env, ranks=sizes.rollout_ranks(config.trainer, config.dag))
    environments = _environments(config, env_spec, servers=servers)
    images = held.count * image_bytes_per_trajectory(config.actor_rollout_ref.model, env_spec)
    if config.cluster.address is not None or environments + images <= ROUGHLY * total_memory_bytes:
        return []
    tasks = counted(len(env_spec.tasks), "task")
    kept = _simulators(config.env, env_spec)
    if kept < len(env_spec.tasks):
        tasks += f" ({kept} of them kept)"
    of_images = f", the images of {held.in_keys} {size_text(images)}" if images else ""
    remedies = [held.remedy]
    if images <= environments:
        remedies = _fewer_simulators(config.env, env_spec, servers=servers)
    if config.cluster.mode == "ray":
        remedies.append("or give cluster.address= of a larger cluster")
    return [
        ConfigError(
            f"env.num_servers x env.envs_per_server = {servers} x "
            f"{config.env.envs_per_server} environments with {tasks} each take about "
            f"{size_text(environments)}{of_images}, but this machine has "
            f"{size_text(total_memory_bytes)} of memory: {', '.join(remedies)}."
        )
    ]


SMALLER_MODEL = "use a smaller model, or train adapters (actor_rollout_ref.model.lora.rank)"
REMEDIES = {
    "environments": "lower env.num_servers, env.envs_per_server or the number of env.tasks",
    "workers": "lower trainer.n_gpus_per_node",
    CHECKPOINT: "write checkpoints before training continues, trainer.async_save=false",
    "offloaded": "set actor_rollout_ref.actor.offload_optimizer and actor_rollout_ref.ref.offload "
    "to false",
    "vLLM asleep": "leave vLLM's weights on the GPU, actor_rollout_ref.rollout.sleep=false",
    "keys and values": "lower env.envs_per_server, or actor_rollout_ref.rollout.kv_cache_gib of "
    "vLLM",
    "activations": "recompute them (actor_rollout_ref.model.gradient_checkpointing), or lower "
    "actor_rollout_ref.actor.micro_batch_tokens or micro_batch_size",
    "rollout ranks": "train adapters (actor_rollout_ref.model.lora.rank)",
    SENT: "roll out in lockstep, trainer.max_staleness=0",
    "images": "lower data.train_batch_size or actor_rollout_ref.rollout.n",
}
"""Remedies for a part of the memory, by words in its name; otherwise SMALLER_MODEL."""


def shortage(parts: Parts, *, free_memory_bytes: float) -> str | None:
    """Warning for a job that needs more memory than is free, with settings that lower its largest
    part; None if it fits.
    """
    needed = total(parts)
    if needed <= free_memory_bytes:
        return None
    largest = max(parts, key=lambda part: part[1])[0]
    remedy = next((keys for name, keys in REMEDIES.items() if name in largest), SMALLER_MODEL)
    return (
        f"{size_text(needed)} is more than the free {size_text(free_memory_bytes)} of memory. The "
        f"largest part is {largest}: {remedy}."
    )


def total(parts: Iterable[tuple[str, float]]) -> float:
    """Total bytes of all parts."""
    return sum(size for _, size in parts)


def policy_parameters(model: ModelArguments) -> int:
    """Parameters of the policy in `actor_rollout_ref.model.path`, or of a new policy."""
    path = model.path
    return NEW_POLICY_PARAMETERS if path is None else parameters_in(path)


def trained_parameters(model: ModelArguments) -> int:
    """Parameters that have a gradient, without those that `train_expert_only` freezes."""
    frozen = FROZEN.get(model.policy)
    if frozen is None or model.path is None or not _trains_expert_only(model):
        return policy_parameters(model)
    return parameters_in(model.path, counted=lambda name: frozen not in name)


def _trains_expert_only(model: ModelArguments) -> bool:
    usual = True if model.policy in EXPERT_ONLY else None
    asked = model.options.get("train_expert_only", usual)
    if asked is not None or model.path is None:
        return bool(asked)
    try:
        config = read_object(find(model.path) / CONFIG_FILE, remedy="")
    except CheckpointError:
        return False  # the check of the folder reports the problem
    return config.get("train_expert_only") is True


def size_text(size: float) -> str:
    """Bytes as `1.5 GB` or `20 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def counted(number: int, noun: str, plural: str = "s") -> str:
    """`1 task`, `2 tasks`."""
    return f"{number} {noun}{plural if number != 1 else ''}"


def _processes(config: SiiRLArguments, env_spec: EnvSpec) -> Parts:
    servers = sizes.servers(config.env, ranks=sizes.rollout_ranks(config.trainer, config.dag))
    policy = config.actor_rollout_ref
    worker = WORKER_BYTES + COMPILER_BYTES * policy.actor.use_torch_compile
    worker += ADAPTERS_BYTES * (policy.model.lora.rank > 0)
    return (
        ("environments", _environments(config, env_spec, servers=servers)),
        ("workers", sizes.ranks(config.trainer) * worker),
        (
            "Ray",
            RAY_BYTES if config.cluster.mode == "ray" and config.cluster.address is None else 0.0,
        ),
    )


def _environments(config: SiiRLArguments, env_spec: EnvSpec, *, servers: int) -> float:
    memory, env = env_spec.memory, config.env
    simulators = _simulators(env, env_spec) * env.envs_per_server
    scenes = min(len(env_spec.tasks), simulators)
    # a user's float16 overflows at 65504
    server, scene, simulator = map(float, (memory.server, memory.scene, memory.simulator))
    if config.cluster.mode == "local":  # they take turns in the rank's process
        server = max(0.0, server - UNMEASURED.server)
    return servers * (server + scenes * scene + simulators * simulator)


def _simulators(env: EnvArguments, env_spec: EnvSpec) -> int:
    """Simulators that one environment keeps."""
    tasks = len(env_spec.tasks)
    return min(tasks, env.kwargs.get("kept_simulators") or tasks)


def _fewer_simulators(env: EnvArguments, env_spec: EnvSpec, *, servers: int) -> list[str]:
    remedies = []
    if _simulators(env, env_spec) > 1 and env_spec.memory.simulator:
        remedies.append("name fewer env.tasks")
        if env_spec.memory.bounded:
            remedies.append("keep fewer simulators ('env.kwargs={kept_simulators: 1}')")
    if servers * env.envs_per_server > 1 or not remedies:
        remedies.insert(0, "lower env.num_servers or env.envs_per_server")
    return remedies


def disk_bytes(
    config: SiiRLArguments,
    *,
    models: int,
    trajectories: int,
    val_episodes: int,
    done: int,
    evaluations: int | None,
    films: bool,
) -> float:
    """Bytes of checkpoints, videos and logs.

    Args:
        config: Configuration of the job.
        models: 2 with a critic, else 1.
        trajectories: Trajectories of a step.
        val_episodes: Episodes of one evaluation.
        done: Steps that a resumed run has already completed.
        evaluations: Evaluations still to come; None if the number of steps is open.
        films: Whether episodes are recorded as videos; those of text are not.
    """
    trainer, model = config.trainer, config.actor_rollout_ref.model
    steps = _steps_at_most(trainer, done=done)
    written = 1 + (steps // trainer.save_freq if trainer.save_freq > 0 else 0)
    # the oldest is deleted only after the newest is written
    checkpoints = min(written, KEPT_CHECKPOINTS + 1)
    # one after each step, one before training, one at the end
    evaluations = min(evaluations or 1, steps + 2)
    of_a_step = min(trainer.record_episodes, trajectories)  # a large number records all
    videos = steps * of_a_step + evaluations * min(trainer.record_val_episodes, val_episodes)
    frozen = _frozen_bytes(model, models=models)  # once a run
    one = STORED_BYTES_PER_PARAMETER * _changing_parameters(model, models=models)
    # several ranks write parts of the frozen weights, which are then joined in a file
    first = one + frozen * (sizes.training_ranks(trainer, config.dag) > 1)
    return frozen + max(checkpoints * one, first) + films * videos * VIDEO_BYTES + LOG_BYTES


def _changing_parameters(model: ModelArguments, *, models: int) -> int:
    """Parameters of policy and critic that are trained; a critic has no adapters."""
    trained = trained_parameters(model)
    adapters = model.lora.rank > 0  # they themselves are negligible
    return trained * (models - adapters)


def _frozen_bytes(model: ModelArguments, *, models: int, width: int = BYTES_PER_PARAMETER) -> float:
    """Bytes of the weights of policy and critic that are not trained, at `width` bytes each; those
    below adapters are in the type of the passes (`siirl.models.adapters.narrow_frozen`).
    """
    parameters, trained = policy_parameters(model), trained_parameters(model)
    if model.lora.rank == 0:
        return float(width * models * (parameters - trained))
    return float(_compute_width(model) * parameters + width * (models - 1) * (parameters - trained))


def _steps_at_most(trainer: TrainingArguments, *, done: int) -> int:
    """Upper bound of the steps after `done`; 0 if only max_minutes bounds them."""
    steps = max(0, (trainer.total_steps or 0) - done)
    return (
        steps
        if trainer.max_minutes is None
        else min(steps, math.ceil(60 * trainer.max_minutes / SHORTEST_STEP_S))
    )
