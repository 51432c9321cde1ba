"""Memory of a policy on one rank, by owner, computed from its shape and the job's settings.

FSDP2 shards weights, gradients and moments evenly over the ranks, and gathers one block at a time
in the compute dtype. A single rank computes under autocast, which casts a weight for each
product and keeps the copy for the backward pass.

Left out: what `siirl.preflight.rank_memory` leaves out; there, the tables of a rank are made of
these.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from siirl.algos.linear_log_probs import BLOCK_ELEMENTS
from siirl.params import sizes
from siirl.params.data_args import DataArguments
from siirl.params.domains import SERVER, VLLM
from siirl.params.model_args import ActorRolloutRefArguments, ModelArguments
from siirl.params.sizes import GIB
from siirl.preflight.memory import Parts, total
from siirl.preflight.model_shapes import QUESTION_LENGTH, ModelShape, NumberSizes, openvla_places
from siirl.preflight.rank_table import (
    GRADIENTS,
    MOMENTS,
    ROLLOUT,
    UPDATE,
    WEIGHTS,
    RankMemory,
)

WEIGHT_BYTES, MOMENTS_BYTES = 4, 8  # float32; Adam's first and second moment
LOGIT_BYTES = 4  # float32


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
        gradients = (GRADIENTS, WEIGHT_BYTES * accumulated)
        update = self.passes(gradients) if shape.is_known else (gradients,)
        step = (
            (GRADIENTS, WEIGHT_BYTES * sharded),
            *(moments if offloads else ()),
        )
        return RankMemory(
            held=_present(held),
            phases=(
                (ROLLOUT, _present(rollout)),
                (UPDATE, _present(update)),
                ("optimiser's step", _present(step)),
            ),
            lower_bound=not shape.is_known,
        )

    def passes(self, gradients: tuple[str, float]) -> Parts:
        """Parts of the forward and backward passes, of a known shape, when they need most: as the
        backward pass enters the last block, with all activations, or at its end, as FSDP2 adds up
        the gradients outside the blocks. A single pass has made no gradients before.
        """
        entering = (
            *(() if self.in_one_pass else (gradients,)),
            ("cast weights", self.cast_weights()),
            ("gathered blocks", self.gathered()),
            ("activations", self.activations()),
            ("logits and their gradient", self.logits()),
        )
        ending = (gradients, ("gathered blocks", self.gathered_at_the_end()))
        return max(entering, ending, key=total)

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
        whole = shape.head_parameters * (self.trains_all and not self.in_group)
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
            phases=((ROLLOUT, _present((*generation, ("encoder", encoder)))),),
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
        """Whole weights and gradients of FSDP2's units as the backward pass enters the last block.

        The weights are those outside the blocks, held throughout, and those of two blocks: the
        current one and the next. The block's gradients are held twice: as computed, and in float32
        for the sum. The head already has its gradient.
        """
        compute, shape = self.computing.compute, self.shape
        if not self.in_group:
            return 0.0
        blocks = 2 * shape.largest_block
        if not self.policy.actor.reshard_after_forward:
            blocks = shape.parameters - shape.other_parameters
        weights = compute * (shape.other_parameters + blocks)
        # which layers outside the blocks of a robot policy follow them is not known
        head = shape.head_parameters if self.text else shape.other_parameters
        gradients = compute * head + (compute + WEIGHT_BYTES) * shape.largest_block
        return float(weights + gradients * self.trains_all)

    def gathered_at_the_end(self) -> float:
        """The same when all blocks have been passed: the gradients outside the blocks are held
        twice.
        """
        compute, shape = self.computing.compute, self.shape
        if not self.in_group:
            return 0.0
        weights = compute * (shape.other_parameters + shape.largest_block)
        gradients = (compute + WEIGHT_BYTES) * shape.other_parameters
        return float(weights + gradients * self.trains_all)

    @property
    def trains_all(self) -> bool:
        """Whether all weights are trained, not adapters alone."""
        return self.policy.model.lora.rank == 0

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
        places = openvla_places(images=images_of(model), question=question, actions=actions)
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


def compute_bytes(model: ModelArguments) -> int:
    """Bytes per value in the passes."""
    return 4 if model.dtype == "float32" else 2


def recomputes(model: ModelArguments, *, text: bool) -> bool:
    """Whether the activations of blocks are recomputed in the backward pass."""
    return model.gradient_checkpointing if text else bool(model.options.get("recompute", True))


def images_of(model: ModelArguments) -> int:
    """Images of an observation."""
    return int(model.options.get("images", 1))


def _present(parts: Parts) -> Parts:
    return tuple((name, size) for name, size in parts if size)
