"""ScoringEngine: passes and weights of one module, on this rank or sharded over several.

A *scorer* turns the module and a micro-batch into log-probs and entropy, or into the values of a
critic. The module stays in evaluation mode: with dropout, the ratio of an unchanged policy to
itself would not be 1. Left out: gradients and optimiser steps (`TrainEngine`).
"""

# B row of this rank's batch

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, Self

import torch
from tensordict import TensorDict
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.profiler import record_function

from siirl.engine.training.batch_cuts import (
    MicroBatches,
    PrefixGrouping,
    RowCutting,
    rows_added,
    rows_in_order,
)
from siirl.engine.training.batch_loss import Scorer, Scores
from siirl.engine.training.collectives import Collectives, OneProcess
from siirl.engine.training.compiled_blocks import Blocks, CompiledBlocks, PlainBlocks
from siirl.engine.training.offload import STAYING, OffloadedTensors, ResidentTensors
from siirl.engine.training.sharding import AS_SHIPPED, Sharding, repeated_blocks, shard
from siirl.models.adapters import adapters_first, narrow_frozen
from siirl.models.weight_rows import Rows, full_tensor, in_rows
from siirl.models.weights import materialise, move_to
from siirl.params import ActorArguments

SCORED = "score micro-batch"  # a range in the trace of a profiled step


class ScoringEngine(Generic[Scores]):
    """Scores rows with one module.

    Args:
        module: The scored module, with the same weights on every rank; the engine moves it and, on
            several ranks, shards it in place.
        scorer: Turns module and micro-batch into log-probs and entropy, or into values.
        ranks: The processes that hold this module together; None: this process alone.
        micro_batch_size: Rows of one forward pass, by default that of `actor_rollout_ref.actor`;
            the gradient does not depend on it.
        micro_batch_tokens: Tokens of one forward pass, whatever its number of rows; None: count
            rows.
        prefix_groups: Groups the rows whose shared prefix the scorer computes once, so that a pass
            does not split them; None: no groups.
        cut: Cuts rows into parts, which are then the micro-batches; None: rows stay whole.
        temperature: Divides the logits, as in rollout; 1 leaves the model as it is. 1 for a critic.
        device: Device of this rank.
        compute_dtype: Type of the passes; None: the type of the weights.
        blocks: Returns the parts of a module that are gathered one at a time on several ranks.
        sharding: How the module is sharded on several ranks.
        offload: Keep the weights in host memory outside of the passes.
        compiler: Backend of torch.compile for the blocks; None: they are not compiled.
    """

    def __init__(
        self,
        *,
        module: nn.Module,
        scorer: Scorer[Scores],
        ranks: Collectives | None = None,
        micro_batch_size: int = ActorArguments.micro_batch_size,
        micro_batch_tokens: int | None = None,
        prefix_groups: PrefixGrouping | None = None,
        cut: RowCutting | None = None,
        temperature: float = 1.0,
        device: torch.device | str = "cpu",
        compute_dtype: torch.dtype | None = None,
        blocks: Callable[[nn.Module], Iterable[nn.Module]] = repeated_blocks,
        sharding: Sharding = AS_SHIPPED,
        offload: bool = False,
        compiler: str | None = None,
    ) -> None:
        self.module = module
        self.scorer: Scorer[Scores] = scorer
        self.ranks: Collectives = OneProcess() if ranks is None else ranks
        self.temperature = temperature
        self.device = torch.device(device)
        self.compute_dtype = compute_dtype
        self.blocks = blocks
        self.sharding = sharding
        self.weights: ResidentTensors = OffloadedTensors(module.parameters) if offload else STAYING
        self.compiler = compiler
        self.computed: Blocks = PlainBlocks()
        self.micro_batches = MicroBatches(
            size=micro_batch_size,
            tokens=micro_batch_tokens,
            prefix_groups=prefix_groups,
            cut=cut,
            ranks=self.ranks,
            device=self.device,
        )

    def initialize(self) -> Self:
        """Move and shard the module; returns the engine itself.

        Weights on the meta device get memory after sharding, and each rank reads its part of those
        that were planned (`siirl.models.weights`).

        Raises:
            CheckpointError: A weight file changed since it was planned.
        """
        if self.compute_dtype is not None:
            narrow_frozen(self.module, self.compute_dtype)
        move_to(self.module.eval(), self.device)
        if self.compiler is not None:
            self.computed = CompiledBlocks([*self.blocks(self.module)], backend=self.compiler)
        if self.ranks.group is not None:
            shard(
                self.module,
                ranks=self.ranks,
                device=self.device,
                compute_dtype=self.compute_dtype,
                blocks=self.blocks(self.module),
                sharding=self.sharding,
            )
        materialise(self.module, self.device)
        self.weights.leave()
        return self

    @torch.no_grad()
    def forward(
        self,
        batch: TensorDict,
        post_hook: Callable[[Scores, TensorDict], torch.Tensor],
        aggregate_fn: Callable[[list[torch.Tensor]], torch.Tensor] = torch.cat,
    ) -> torch.Tensor:
        """Score this rank's rows without gradients.

        Args:
            batch: This rank's rows; if it is empty, so is the result.
            post_hook: Selects what to keep of a micro-batch's scores; one entry per row, 0 at
                masked tokens if rows are cut.
            aggregate_fn: Joins the kept tensors of the micro-batches.
        """
        kept = []
        numbers = []
        with self.weights.resident(), self.computed.passes():
            for micro_batch, rows, _ in self.micro_batches.of(batch):
                with record_function(SCORED):
                    with self._computing():
                        scores = self.scorer(self.module, micro_batch, self.temperature)
                    result = post_hook(scores, micro_batch)
                kept.append(result if rows else result[:0])
                numbers.append(rows)
            if isinstance(self.module, FSDPModule):
                # without a backward pass the root's weights would stay gathered, and the optimiser
                # would see whole weights
                self.module.reshard()
        if self.micro_batches.cut is not None:
            kept = [rows_added(kept, numbers, size=len(batch))]
            numbers = [range(len(batch))]
        return aggregate_fn(rows_in_order(kept, numbers))

    def upload_weights(self) -> dict[str, torch.Tensor]:
        """Whole weights and buffers under the module's names, on this rank's device, for rollout.

        Every rank calls it and gets them. On one rank these are the module's own tensors, not
        copies.
        """
        state = self.module.state_dict()
        return {name: full_tensor(tensor).detach() for name, tensor in state.items()}

    def weights_in_turn(
        self,
        *,
        without: Collection[str] = (),
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> Iterator[Rows]:
        """Weights and buffers, a few rows at a time, with adapters before the weights that they
        change.

        Every rank consumes them to the end: sharded rows are gathered in turn, so no rank holds the
        whole model.

        Args:
            without: Weights to leave out; the same on every rank.
            dtypes: Types that rows are cast to before they are sent, by name; others keep theirs.
        """
        state = adapters_first(self.module.state_dict())
        return in_rows(((name, each) for name, each in state if name not in without), dtypes=dtypes)

    def _computing(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast to the compute dtype in a single process; in a group FSDP2 casts.

        Autocast's cache is off. It would hold a second copy of all weights for the whole pass. If a
        weight is used twice, it would also sum its gradients in the compute dtype.
        """
        if self.compute_dtype is None or self.ranks.group is not None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype, cache_enabled=False)
