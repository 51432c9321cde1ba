"""Memory of a rank's device, by owner: of its GPU, or of the host for a rank on CPUs (`cpu_ranks`).

FSDP2 shards weights, gradients and moments evenly over the ranks, and gathers one block at a time
in the compute dtype. A single rank computes under autocast, which casts a weight for each
product and keeps the copy for the backward pass. A step has three phases: rollout, the passes of an
update, and the optimiser's step; a critic adds an update and an optimiser's step. Each frees its
memory before the next. The table shows each; the largest decides.

Left out: passes of a reward model, and its weights on ranks that only roll out; the other agents of
a job with several policies; fragmentation and the CUDA context (`gpu_fit.USABLE` leaves room for
them); of models of unknown architecture (`siirl.preflight.model_shapes`) everything that needs more
than the number of weights: activations, blocks that are gathered or cast, and keys and values of
siirl's own engine. Their table is a lower bound.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from envs.base import EnvSpec
from siirl.algos.linear_log_probs import BLOCK_ELEMENTS
from siirl.files.paths import find
from siirl.files.weight_files import parameters_in, weight_files
from siirl.params import sizes
from siirl.params.agents import rows_per_episode, sends_weights
from siirl.params.critic_sizes import critic_update
from siirl.params.data_args import DataArguments
from siirl.params.domains import SERVER, VLLM, is_text
from siirl.params.model_args import (
    ActorRolloutRefArguments,
    LoraArguments,
    ModelArguments,
)
from siirl.params.policies import LANGUAGE_MODEL
from siirl.params.references import is_reference
from siirl.params.reward_args import RewardArguments, reward_parts
from siirl.params.sizes import GIB
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.memory import Parts, policy_parameters, total, trained_parameters
from siirl.preflight.model_shapes import (
    QUESTION_LENGTH,
    ModelShape,
    NumberSizes,
    openvla_places,
    read_shape,
    unknown_shape,
)

RANK, TRAINING_RANK, ROLLOUT_RANK = "rank", "training rank", "rollout rank"
WEIGHTS, MOMENTS = "weights", "Adam"
OF_CRITIC = "critic's "
HEAD = "lm_head"  # in the name of a language model's head, which a critic does not have
WEIGHT_BYTES, MOMENTS_BYTES = 4, 8  # float32; Adam's first and second moment
LOGIT_BYTES = 4  # float32


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank's device by name, in the parts of a step."""

    held: Parts
    """Bytes held throughout the step."""
    phases: tuple[tuple[str, Parts], ...]
    """Additional bytes by phase."""
    left_out: tuple[str, ...] = ()
    """Models that are on this GPU too, but whose memory is unknown."""
    kind: str = RANK
    """Which rank this is, if groups of ranks differ."""
    lower_bound: bool = False
    """Whether a model's architecture is unknown, so that only its weights are counted."""

    def with_critic(self, critic: "RankMemory") -> "RankMemory":
        """This rank with a critic, whose table is `critic`: a rank holds both models throughout,
        and updates one after the other.
        """
        own = tuple((f"{OF_CRITIC}{name}", size) for name, size in critic.held)
        phases = tuple(
            (f"{OF_CRITIC}{name}", parts) for name, parts in critic.phases if name != "rollout"
        )
        return dataclasses.replace(
            self,
            held=(*self.held, *own),
            phases=(*self.phases, *phases),
            lower_bound=self.lower_bound or critic.lower_bound,
        )

    @property
    def peak(self) -> tuple[str, float]:
        """The phase with the largest memory, and the rank's bytes in it."""
        name, parts = max(self.phases, key=lambda phase: total(phase[1]))
        return name, total(self.held) + total(parts)


def rank_memory(
    config: SiiRLArguments,
    spec: EnvSpec,
    *,
    with_critic: bool = False,
    shape: ModelShape | None = None,
    kind: str | None = None,
    assumed: ModelShape | None = None,
    sends: bool | None = None,
) -> RankMemory | None:
    """The table of a rank; None for a model whose number of weights is unknown.

    Args:
        config: Configuration of the job.
        spec: Spec of the environment.
        with_critic: Whether the job trains a critic.
        shape: Shape of the model; None: read it from `actor_rollout_ref.model.path`.
        kind: Kind of the rank, with separate groups; None: the one that needs more.
        assumed: Shape to assume of a model, or of its critic, of which nothing is known.
        sends: The run's `sends_weights`; None: that of `config`.
    """
    sends = sends_weights(config) if sends is None else sends
    shape = model_shape(config.actor_rollout_ref.model) if shape is None else shape
    if shape is None or (shape.is_known and bool(shape.images) == is_text(spec)):
        shape = assumed
    if shape is None:
        return None
    ranks = sizes.training_ranks(config.trainer, config.dag)
    rollout_ranks = sizes.rollout_ranks(config.trainer, config.dag)
    policy = PolicyMemory(
        policy=config.actor_rollout_ref,
        shape=shape,
        data=config.data,
        episode_steps=None if is_text(spec) else spec.max_episode_steps,
        ranks=ranks,
        episodes=ceil(_episodes_at_once(config, tasks=len(spec.tasks)) / rollout_ranks),
        in_group=sizes.trains_sharded(config.trainer, config.dag),
        needs_reference=sizes.needs_reference(config.actor_rollout_ref.actor, config.algorithm),
        rolls_out=not sizes.separate(config.dag),
        overwrites=sends and config.trainer.max_staleness == 0,
        agents=max(rows_per_episode(spec), len(spec.agent_names)),
    )
    encoder = encoder_bytes(config.reward)
    training = policy.table(encoder=encoder if policy.rolls_out else 0.0)
    if with_critic:
        critic = critic_memory(policy, config, assumed=assumed)
        training = (
            dataclasses.replace(training, left_out=("critic",))
            if critic is None
            else training.with_critic(critic.table())
        )
    training = _with_reward_model(training, config, sharing=ranks if policy.in_group else 1)
    if policy.rolls_out:
        return training
    groups = {TRAINING_RANK: training, ROLLOUT_RANK: policy.rollout_table(encoder=encoder)}
    return max(
        (
            dataclasses.replace(table, kind=name)
            for name, table in groups.items()
            if kind in (None, name)
        ),
        key=lambda table: table.peak[1],
    )


def _episodes_at_once(config: SiiRLArguments, *, tasks: int) -> int:
    """Concurrent episodes over all ranks: as many as there are environments, and no more than a
    step or an evaluation has; continuous rollouts may begin those of the next
    `trainer.max_staleness` steps (`siirl.engine.rollout.admission`).
    """
    trainer, dag, rollout = config.trainer, config.dag, config.actor_rollout_ref.rollout
    slots = sizes.slots(config.env, ranks=sizes.rollout_ranks(trainer, dag))
    of_step = sizes.trajectories_per_step(config.data, rollout)
    if sizes.streams(trainer, dag, rollout):
        of_step *= 1 + trainer.max_staleness
    return min(slots, max(of_step, trainer.val_episodes * trainer.val_samples * tasks))


def model_shape(
    model: ModelArguments, *, path: str | None = None, critic: bool = False
) -> ModelShape | None:
    """The shape of the model in `path`, by default `actor_rollout_ref.model.path`, or of a critic
    on it; None if not even the number of its weights is known.
    """
    path = path or model.path
    if path is None:
        return None
    shape = read_shape(find(path), images=_images(model), critic=critic)
    return shape or _counted_weights(model, path=path, critic=critic)


def _counted_weights(model: ModelArguments, *, path: str, critic: bool) -> ModelShape | None:
    """The weights in the files in `path`. A user's policy decides itself what it reads and trains,
    and the critic of a robot policy what it keeps.
    """
    if is_reference(model.policy) or (critic and model.policy != LANGUAGE_MODEL):
        return None
    if critic:
        parameters = parameters_in(path, counted=lambda name: HEAD not in name)
        return unknown_shape(parameters) if parameters else None
    own = dataclasses.replace(model, path=path)
    parameters = policy_parameters(own)
    frozen = parameters - trained_parameters(own)
    return unknown_shape(parameters, frozen=frozen) if parameters else None


@dataclass(frozen=True)
class PolicyMemory:
    """Memory of a policy on one rank: its weights and all data computed with them."""

    policy: ActorRolloutRefArguments
    shape: ModelShape
    data: DataArguments
    episode_steps: int | None
    """Longest episode of a robot; None for text."""
    ranks: int
    """Number of training ranks."""
    episodes: int
    """Concurrent episodes of a rollout rank."""
    in_group: bool
    """Whether training uses FSDP2 instead of a single process under autocast."""
    needs_reference: bool
    """Whether a KL to a reference has a weight."""
    rolls_out: bool = True
    """Whether the training ranks also roll out."""
    overwrites: bool = False
    """Whether new weights of a rollout rank overwrite those that act."""
    agents: int = 1
    """Largest number of rows of an episode."""

    def table(self, *, encoder: float = 0.0) -> RankMemory:
        """All parts of a training rank, with an encoder of `encoder` bytes."""
        actor, shape = self.policy.actor, self.shape
        has_adapters = self.policy.model.lora.rank > 0
        trained = self.adapters if has_adapters else shape.parameters - shape.frozen
        sharing = actor.fsdp_size or self.ranks
        sharded = trained / sharing
        weights = (self.base_bytes * shape.parameters + WEIGHT_BYTES * self.adapters) / sharing
        apart = self.has_own_reference and not self.policy.ref.offload
        width = self.computing.compute if self.in_group else WEIGHT_BYTES
        reference = apart * width * shape.parameters / sharing  # it has no adapters
        accumulated = trained if actor.reduce_once and self.in_group else sharded
        moments = ((MOMENTS, MOMENTS_BYTES * sharded),)
        offloads = actor.offload_optimizer
        generation = self.generation()
        held = (
            (WEIGHTS, weights),
            *(() if offloads else moments),
            ("reference", reference),
            ("acting copy", self.acting_copy()),
            *(() if self.sleeps else generation),
        )
        rollout = (*(generation if self.sleeps else ()), ("encoder", encoder))
        passes = self.passes() if shape.is_known else ()
        # a single backward pass makes gradients while it frees activations
        before = 0.0 if passes and self.in_one_pass else WEIGHT_BYTES * accumulated
        update = (("gradients", before), *passes)
        step = (
            ("gradients", WEIGHT_BYTES * sharded),
            *(moments if offloads else ()),
        )
        return RankMemory(
            held=_present(held),
            phases=(
                ("rollout", _present(rollout)),
                ("update", _present(update)),
                ("optimiser's step", _present(step)),
            ),
            lower_bound=not shape.is_known,
        )

    def passes(self) -> Parts:
        """Parts of the forward and backward passes, of a known shape."""
        return (
            ("cast weights", self.cast_weights()),
            ("gathered blocks", self.gathered()),
            ("activations", self.activations()),
            ("logits and their gradient", self.logits()),
        )

    @property
    def in_one_pass(self) -> bool:
        """Whether one micro-batch of a text's rows is the whole mini-batch of a rank."""
        actor, data = self.policy.actor, self.data
        if not self.text:
            return False
        rows = ceil(sizes.trajectories_per_mini_batch(self.policy) * self.agents / self.ranks)
        longest = data.max_prompt_length + data.max_response_length
        budget = actor.micro_batch_tokens or actor.micro_batch_size * longest
        return rows * longest <= budget

    def logits(self) -> float:
        """A block of logits and its probabilities (`siirl.algos.linear_log_probs`), and the
        gradient of the head, which is whole before it is added; FSDP2's is in `gathered`.
        """
        shape = self.shape
        if not self.text or shape.is_critic:
            return 0.0
        whole = shape.head_parameters * (self.policy.model.lora.rank == 0 and not self.in_group)
        return float(2 * LOGIT_BYTES * BLOCK_ELEMENTS + WEIGHT_BYTES * whole)

    def rollout_table(self, *, encoder: float) -> RankMemory:
        """All parts of a rank that only rolls out: the acting weights, a second copy that receives
        new ones unless they overwrite those, and memory of generation. vLLM's new weights are in
        host memory.
        """
        size = self.computing.compute if self.in_group else self.base_bytes
        name, number = ("acting weights", 1) if self.overwrites else ("acting weights, twice", 2)
        copies = float(number * size * self.shape.parameters * (self.policy.rollout.name != VLLM))
        generation = dataclasses.replace(self, rolls_out=True).generation()
        return RankMemory(
            held=_present(((name, copies),)),
            phases=(("rollout", _present((*generation, ("encoder", encoder)))),),
            lower_bound=not self.shape.is_known,
        )

    @cached_property
    def computing(self) -> NumberSizes:
        """Types of the passes."""
        compute = compute_bytes(self.policy.model)
        narrow = self.in_group or self.base_bytes == compute
        return NumberSizes(
            compute=compute,
            residual=compute if narrow else 4,
            compiled=self.policy.actor.use_torch_compile,
            adapted=self.policy.model.lora.rank > 0 and not self.in_group,
        )

    @property
    def base_bytes(self) -> int:
        """Bytes of a base weight, which adapters leave in the compute dtype
        (`siirl.models.adapters.narrow_frozen`).
        """
        adapters = self.policy.model.lora.rank > 0
        return compute_bytes(self.policy.model) if adapters else WEIGHT_BYTES

    @property
    def text(self) -> bool:
        """Whether the policy is a language model."""
        return self.episode_steps is None

    @property
    def adapters(self) -> int:
        """Parameters of LoRA adapters."""
        rank = self.policy.model.lora.rank
        return self.shape.adapter_parameters(rank) if rank else 0

    @property
    def has_own_reference(self) -> bool:
        """Whether the KL reference is a separate copy of the weights, not the base of adapters."""
        below = self.policy.model.lora.rank > 0 and self.policy.ref.path is None
        return self.needs_reference and not below

    def acting_copy(self) -> float:
        """Whole acting weights if training shards them; vLLM's are in `generation`."""
        own = self.rolls_out and self.in_group and self.policy.rollout.name not in (VLLM, SERVER)
        return float(own * self.computing.compute * self.shape.parameters)

    def cast_weights(self) -> float:
        """Cast weights that autocast keeps for the backward pass: of all blocks, or of the block
        whose activations are being recomputed, and of the layers outside the blocks.
        """
        if self.in_group or not self.computing.casts:
            return 0.0
        shape, text = self.shape, self.text
        blocks = shape.parameters - shape.other_parameters
        kept = shape.largest_block if recomputes(self.policy.model, text=text) else blocks
        # the head of a robot policy has a small vocabulary, and that of a critic one output
        products = sum(inputs * outputs for inputs, outputs in shape.other_linears)
        beside = shape.other_parameters if text and not shape.is_critic else products
        return float(self.computing.compute * (kept + beside))

    def gathered(self) -> float:
        """Whole weights and gradients of FSDP2's units.

        The weights are those outside the blocks, held throughout, and those of two blocks: the
        current one and the next. A block's gradients are held twice: as computed, and in float32
        for the sum.
        """
        compute = self.computing.compute
        if not self.in_group:
            return 0.0
        blocks = 2 * self.shape.largest_block
        if not self.policy.actor.reshard_after_forward:
            blocks = self.shape.parameters - self.shape.other_parameters
        units = self.shape.other_parameters + blocks
        trains_all = self.policy.model.lora.rank == 0
        gradients = (self.shape.other_parameters + self.shape.largest_block) * trains_all
        return float(compute * units + (compute + 4) * gradients)

    def activations(self) -> float:
        """Activations of a micro-batch: of every block; or, if recomputed, the inputs of all blocks
        and the activations of one.
        """
        computing = self.computing
        again = recomputes(self.policy.model, text=self.text)
        places, observations = self.places()
        counts = (*(observations * number for number in self.shape.images), places)
        kept = 0.0
        for stack, number in zip(self.shape.stacks, counts, strict=True):
            block = stack.input_bytes(computing) if again else stack.block_bytes(computing)
            kept += stack.blocks * number * block
        decoder = self.shape.decoder
        # gradients of gate, up and their product, and of the block's input
        working = places * (
            3 * computing.compute * decoder.hidden + 2 * decoder.input_bytes(computing)
        )
        if again:
            working += places * decoder.block_bytes(computing)
        return float(kept + working)

    def places(self) -> tuple[int, int]:
        """Decoder positions and observations in a micro-batch of the longest rows."""
        actor, data = self.policy.actor, self.data
        if self.episode_steps is None:
            row = data.max_prompt_length + data.max_response_length
            return actor.micro_batch_tokens or actor.micro_batch_size * row, 0
        model = self.policy.model
        actions = sizes.actions_of_a_pass(model)
        whole = actor.micro_batch_size * ceil(self.episode_steps / actions)
        observations = actor.micro_batch_chunks or whole
        question = model.options.get("question_length", QUESTION_LENGTH)
        places = openvla_places(images=_images(model), question=question, actions=actions)
        return observations * places, observations

    def generation(self) -> Parts:
        """Keys and values of text engines, and vLLM's weights; each GPU holds its part. Those of
        siirl's own engine need a known shape.
        """
        rollout = self.policy.rollout
        if not self.rolls_out:
            return ()
        if rollout.name == "vllm":
            compute = self.computing.compute
            weights = compute * self.shape.parameters / rollout.tensor_model_parallel_size
            return (("vLLM's weights", weights), ("keys and values", rollout.kv_cache_gib * GIB))
        if rollout.name != "hf" or not self.shape.is_known:
            return ()
        row = self.data.max_prompt_length + self.data.max_response_length
        token = self.shape.decoder.token_bytes(self.computing.compute)
        return (("keys and values", float(self.episodes * row * token)),)

    @property
    def sleeps(self) -> bool:
        """Whether the engine frees its memory during training; siirl's own engine drops its
        cache.
        """
        rollout = self.policy.rollout
        return rollout.name != "vllm" or rollout.sleep


def critic_memory(
    policy: PolicyMemory, config: SiiRLArguments, *, assumed: ModelShape | None = None
) -> PolicyMemory | None:
    """Memory of the critic beside `policy`, without adapters and not compiled; None if its number
    of weights is unknown and none is `assumed` (`siirl.dag_worker.critic_components`).
    """
    settings = config.actor_rollout_ref
    shape = model_shape(settings.model, path=config.critic.path, critic=True) or assumed
    if shape is None:
        return None
    model = dataclasses.replace(settings.model, lora=LoraArguments())
    actor = dataclasses.replace(
        settings.actor,
        micro_batch_size=critic_update(config.critic, settings.actor).micro_batch_size,
        use_torch_compile=False,
    )
    return dataclasses.replace(
        policy,
        policy=dataclasses.replace(settings, model=model, actor=actor),
        shape=shape,
        needs_reference=False,
        rolls_out=False,
    )


def _with_reward_model(table: RankMemory, config: SiiRLArguments, *, sharing: int) -> RankMemory:
    """`table` with the weights of a learnt reward model, which `sharing` ranks divide."""
    path = config.reward_model.path
    if path is None:
        return table
    parts = reward_parts(config.reward, config.custom_reward_function)
    if all(part.name != "model" for part in parts):
        return table
    stored = sum(file.stat().st_size for file in weight_files(find(path)))
    if not stored:
        return dataclasses.replace(table, left_out=(*table.left_out, "reward model"))
    return dataclasses.replace(table, held=(*table.held, ("reward model", stored / sharing)))


def compute_bytes(model: ModelArguments) -> int:
    """Bytes per value in the passes."""
    return 4 if model.dtype == "float32" else 2


def recomputes(model: ModelArguments, *, text: bool) -> bool:
    """Whether the activations of blocks are recomputed in the backward pass."""
    return model.gradient_checkpointing if text else bool(model.options.get("recompute", True))


def _images(model: ModelArguments) -> int:
    return int(model.options.get("images", 1))


def encoder_bytes(reward: RewardArguments) -> float:
    """Weights of the video encoder, by default in bfloat16; they are in host memory while idle."""
    if not sizes.needs_video(reward) or reward.encoder_device == "cpu" or reward.encoder is None:
        return 0.0
    return _stored_bytes(reward.encoder) / (1 if reward.encoder_dtype == "float32" else 2)


def _stored_bytes(encoder: str) -> float:
    """Bytes of the encoder's float32 files; 0 if they are not on this machine."""
    path = find(encoder)
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return float(sum(file.stat().st_size for file in files if file.is_file()))


def _present(parts: Parts) -> Parts:
    return tuple((name, size) for name, size in parts if size)
