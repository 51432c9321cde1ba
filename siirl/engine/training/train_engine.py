"""TrainEngine: trains one module with its optimiser and schedule, on one rank or several.

The engine is blind to algorithm and domain. A *scorer* turns the module and a micro-batch into
log-probs and entropy, or into the values of a critic; a *loss* turns those into a sum; a *weight*
is the denominator, counted over all rows of all ranks before the first backward pass. So the
gradient does not depend on how rows are cut into micro-batches or spread over ranks. A rank with
fewer rows, or none, joins the collective calls of the others with dummy passes that add nothing.

The module stays in evaluation mode: with dropout, the ratio of an unchanged policy to itself would
not be 1. A gradient that is not finite is never applied: all ranks skip and count the step, and the
run stops after `SKIPS_IN_A_ROW` of them.
"""

# B row of this rank's batch

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from tensordict import TensorDict
from torch import nn
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import get_total_norm

from siirl.algos.log_probs import TokenScores
from siirl.data_coordinator.protocol.batch import without_texts
from siirl.engine.training.batch_loss import BatchLoss, LossSum, LossTally
from siirl.engine.training.collectives import Collectives, OneProcess, fail_together
from siirl.engine.training.micro_batches import (
    PrefixGrouping,
    RowCutting,
    micro_batch_rows,
    rows_added,
    rows_in_order,
    take_part,
    take_rows,
    without_places,
)
from siirl.engine.training.offload import Offloaded
from siirl.engine.training.optimizer import MOMENTS, build_optimizer, trained_parameters
from siirl.engine.training.saved_state import SHARDS, export_weights, load_state, state_tensors
from siirl.engine.training.schedules import learning_rate_factor, warmup_length
from siirl.engine.training.shard_files import StagedParts, stage, write_metadata, write_parts
from siirl.engine.training.sharding import (
    AS_SHIPPED,
    Sharding,
    full_tensor,
    measure_reduction,
    repeated_blocks,
    shard,
)
from siirl.errors import CheckpointError, ConfigError, InvariantError, TensorError
from siirl.models.weights import materialise, move_to
from siirl.occupation import OCCUPATION
from siirl.params import ActorArguments, OptimizerArguments

# A single overflow of the gradient happens; three in a row mean a broken model.
SKIPS_IN_A_ROW = 3
TOKEN_AXES = 2  # row and token

Thing = TypeVar("Thing")
Scores = TypeVar("Scores", TokenScores, torch.Tensor)
"""Output of a scorer for each token: log-prob and entropy of a policy, or the value of a critic."""
Scores_co = TypeVar("Scores_co", TokenScores, torch.Tensor, covariant=True)


class Scorer(Protocol[Scores_co]):
    """Runs the module on a micro-batch of at least one row.

    Padding rows have an empty `response_mask`.
    """

    def __call__(self, module: nn.Module, micro_batch: TensorDict, temperature: float) -> Scores_co:
        """Log-probs and entropy [B, T] of the tokens of `micro_batch`, or their values [B, T].

        `temperature` divides the logits.
        """


LossFunction = Callable[[Scores, TensorDict], LossSum]
LossWeight = Callable[[TensorDict], torch.Tensor]


@dataclass(frozen=True)
class TrainStep:
    """One optimiser step, the same on every rank."""

    batch: BatchLoss
    applied: bool
    """False if the batch had no weight or the gradient was not finite."""
    grad_norm: float
    """Norm of the whole gradient before clipping."""
    learning_rate: float


class TrainEngine(Generic[Scores]):
    """Trains one module.

    Args:
        module: Same weights on every rank; the engine moves it and, on several ranks, shards it in
            place.
        scorer: Turns module and micro-batch into log-probs and entropy, or into values.
        optim: Optimiser and schedule; None for a module that only scores (a reference policy).
        ranks: The processes that train this module together; None: this process alone.
        total_steps: Optimiser steps of the run, for schedules that fall; None if unknown.
        micro_batch_size: Rows of one forward pass, by default that of `actor_rollout_ref.actor`;
            the gradient does not depend on it.
        micro_batch_tokens: Tokens of one forward pass, whatever its number of rows; None: count
            rows.
        prefix_groups: Groups the rows whose shared prefix the scorer computes once, so that a pass
            does not split them; None: no groups.
        cut: Cuts rows into parts, which are then the micro-batches; None: rows stay whole.
        temperature: Divides the logits, as in rollout; 1 leaves the model as it is. A critic has 1.
        max_grad_norm: Clip the gradient to this norm; None: no clipping.
        device: Device of this rank.
        compute_dtype: Type of the passes; None: the type of the weights. Weights, gradients and
            moments keep the type of the weights.
        blocks: Returns the parts of a module that are gathered one at a time on several ranks.
        sharding: How the module is sharded on several ranks.
        offload: Keep in host memory what is idle: moments outside of the optimiser's step, or the
            weights of a module that only scores outside of its passes.
        work: Operations of a training pass over a micro-batch; they add up in `flops`. None: not
            counted.
    """

    def __init__(
        self,
        *,
        module: nn.Module,
        scorer: Scorer[Scores],
        optim: OptimizerArguments | None,
        ranks: Collectives | None = None,
        total_steps: int | None = None,
        micro_batch_size: int = ActorArguments.micro_batch_size,
        micro_batch_tokens: int | None = None,
        prefix_groups: PrefixGrouping | None = None,
        cut: RowCutting | None = None,
        temperature: float = 1.0,
        max_grad_norm: float | None = None,
        device: torch.device | str = "cpu",
        compute_dtype: torch.dtype | None = None,
        blocks: Callable[[nn.Module], Iterable[nn.Module]] = repeated_blocks,
        sharding: Sharding = AS_SHIPPED,
        offload: bool = False,
        work: Callable[[nn.Module, TensorDict], float | None] | None = None,
    ) -> None:
        if micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size={micro_batch_size} must be at least 1.")
        if micro_batch_tokens is not None and micro_batch_tokens < 1:
            raise ConfigError(f"micro_batch_tokens={micro_batch_tokens} must be at least 1.")
        self.scorer: Scorer[Scores] = scorer
        self.module = module
        self.optim = optim
        self.ranks: Collectives = OneProcess() if ranks is None else ranks
        self.total_steps = total_steps
        self.temperature = temperature
        self.micro_batch_size = micro_batch_size
        self.micro_batch_tokens = micro_batch_tokens
        self.prefix_groups = prefix_groups
        self.cut = cut
        self.max_grad_norm = max_grad_norm
        self.compute_dtype = compute_dtype
        self.blocks = blocks
        self.sharding = sharding
        self.offloaded = Offloaded(self._idle_tensors) if offload else None
        self.device = torch.device(device)
        self.work = work
        self.flops: float | None = None if work is None else 0.0
        self.optimizer: torch.optim.AdamW | None = None
        self.gradient_factor = 1.0
        self.steps = 0
        self.progress = 0.0
        self.skips_in_a_row = 0

    def initialize(self) -> "TrainEngine":
        """Move and shard the module, measure the gradient reduction, build the optimiser.

        Weights on the meta device get memory after sharding, and each rank reads its part of those
        that were planned (`siirl.models.weights`). Returns the engine itself.

        Raises:
            CheckpointError: A weight file changed since it was planned.
        """
        move_to(self.module.eval(), self.device)
        if self.ranks.group is not None:
            self.gradient_factor = measure_reduction(
                ranks=self.ranks,
                device=self.device,
                compute_dtype=self.compute_dtype,
                shard_ranks=self.sharding.shard_ranks,
            )
            blocks = self.blocks(self.module)
            shard(
                self.module,
                ranks=self.ranks,
                device=self.device,
                compute_dtype=self.compute_dtype,
                blocks=blocks,
                sharding=self.sharding,
            )
        materialise(self.module, self.device)
        if self.optim is not None:
            self.warmup = warmup_length(
                scheduler=self.optim.scheduler,
                warmup_steps=self.optim.warmup_steps,
                warmup_ratio=self.optim.warmup_ratio,
                total_steps=self.total_steps,
            )
            self.optimizer = build_optimizer(self.module, self.optim)
            # raises for an impossible schedule before the first rollout
            self.learning_rate()
        if self.offloaded is not None:
            self.offloaded.leave()
        return self

    def destroy(self) -> None:
        """Drop gradients and moments; the owner of the process group ends it."""
        self.module.zero_grad(set_to_none=True)
        self.optimizer = None

    # Training

    def train_batch(
        self,
        batch: TensorDict,
        loss_fn: LossFunction[Scores],
        loss_weight_fn: LossWeight,
        *,
        weight: torch.Tensor | None = None,
        sums_tokens: bool = False,
    ) -> TrainStep:
        """Take one optimiser step on the rows of all ranks.

        Args:
            batch: This rank's rows; may be empty.
            loss_fn: Loss of a micro-batch as a sum.
            loss_weight_fn: What a micro-batch adds to the denominator.
            weight: What this rank adds to the denominator, if that is more than `batch`; None:
                `loss_weight_fn(batch)`.
            sums_tokens: Whether the loss is a sum over tokens, each of which depends on no other.
                Otherwise, where rows are cut, all are scored before the first backward pass.

        Raises:
            TensorError: Bad numbers on this rank; the other ranks raise InvariantError.
            InvariantError: Gradients were not finite for `SKIPS_IN_A_ROW` steps.
        """
        return self.apply_gradient(
            self.accumulate_gradient(
                batch, loss_fn, loss_weight_fn, weight=weight, sums_tokens=sums_tokens
            )
        )

    def accumulate_gradient(
        self,
        batch: TensorDict,
        loss_fn: LossFunction[Scores],
        loss_weight_fn: LossWeight,
        *,
        weight: torch.Tensor | None = None,
        sums_tokens: bool = False,
    ) -> BatchLoss:
        """Leave the gradient of the whole batch's loss in the weights' `grad`.

        There is no gradient if the batch has no weight. Arguments are those of `train_batch`.
        """
        self.module.zero_grad(set_to_none=True)
        if weight is None:
            weight = loss_weight_fn(batch) if len(batch) else torch.zeros(())
        denominator = float(self.ranks.sum(weight.double().cpu()))
        if denominator == 0:
            return BatchLoss(loss=0.0, weight=0.0, sums={}, maxima={})
        scale = self.gradient_factor / denominator
        if self.cut is not None and not sums_tokens:
            return self._through_scores(batch, loss_fn, denominator=denominator, scale=scale)
        tally = LossTally()
        failure: TensorError | None = None
        for (micro_batch, rows), last in _with_end(self._micro_batches(batch)):
            counts = bool(rows)
            self._reduces(last)
            self._count_work(micro_batch, counts=counts)
            with self._computing():
                scores = self.scorer(self.module, micro_batch, self.temperature)
            try:
                part = loss_fn(scores, micro_batch)
            except TensorError as error:
                # the other ranks wait in the backward pass: join them, then fail together
                failure = failure or error
                part = LossSum(loss=_numbers(scores).sum())
                counts = False
            (part.loss * (scale if counts else 0.0)).backward()
            tally.add(part, counts=counts)
        fail_together(self.ranks, failure)
        return tally.total(self.ranks, weight=denominator)

    def _through_scores(
        self,
        batch: TensorDict,
        loss_fn: LossFunction[Scores],
        *,
        denominator: float,
        scale: float,
    ) -> BatchLoss:
        """The gradient of a loss that needs whole rows, from parts of rows.

        All parts are scored first, then the loss has its gradient in the scores, which each part
        takes into the module in a second pass (the gradient cache of arXiv 2101.06983).
        """
        both: torch.Tensor = self.forward(batch, lambda scores, _: _stacked(scores))
        counts = len(batch) > 0
        rows = batch if counts else _row_of_zeros(without_texts(batch))
        rows = _without_observations(rows).to(self.device)
        values = (both if counts else both.new_zeros((1, *both.shape[1:]))).requires_grad_()
        tally = LossTally()
        failure: TensorError | None = None
        try:
            part = loss_fn(_unstacked(values), rows)
            part.loss.backward()
            tally.add(part, counts=counts)
        except TensorError as error:
            failure = error
        fail_together(self.ranks, failure)
        for (micro_batch, numbers), last in _with_end(self._micro_batches(batch)):
            self._reduces(last)
            self._count_work(micro_batch, counts=bool(numbers))
            with self._computing():
                scores = self.scorer(self.module, micro_batch, self.temperature)
            pull = _stacked(scores)
            if numbers and values.grad is not None:
                gradient = values.grad[torch.as_tensor(numbers, device=values.device)]
                (pull * gradient).sum().mul(scale).backward()
            else:
                (pull.sum() * 0.0).backward()
        return tally.total(self.ranks, weight=denominator)

    def apply_gradient(self, batch_loss: BatchLoss) -> TrainStep:
        """Clip the gradient and move the weights, with the same decision on every rank.

        The step is skipped if the batch had no weight or the gradient is not finite.
        """
        if self.optimizer is None:
            raise ConfigError(
                "This engine has no optimiser: it was made with optim=None, or not initialised."
            )
        rate = self.learning_rate()
        if batch_loss.weight == 0:
            return TrainStep(batch=batch_loss, applied=False, grad_norm=0.0, learning_rate=rate)
        gradients = [
            weight.grad for _, weight in trained_parameters(self.module) if weight.grad is not None
        ]
        norm = float(full_tensor(get_total_norm(gradients)))
        finite = math.isfinite(norm)
        self._count_skip(finite)
        if finite:
            self._clip(gradients, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            with self._with_moments():
                self.optimizer.step()
            self.steps += 1
        self.module.zero_grad(set_to_none=True)
        return TrainStep(batch=batch_loss, applied=finite, grad_norm=norm, learning_rate=rate)

    def set_progress(self, progress: float) -> None:
        """Set the share of the run that is done, in [0, 1].

        Schedules fall with it where filters leave fewer optimiser steps than planned.
        """
        self.progress = progress

    def learning_rate(self) -> float:
        """Learning rate of the next optimiser step."""
        assert self.optim is not None
        step = self.steps
        if self.total_steps is not None and step >= self.warmup:
            step = max(step, int(self.progress * self.total_steps))
        factor = learning_rate_factor(
            scheduler=self.optim.scheduler,
            step=step,
            warmup=self.warmup,
            total_steps=self.total_steps,
        )
        return self.optim.lr * factor

    def _clip(self, gradients: list[torch.Tensor], norm: float) -> None:
        if self.max_grad_norm is not None and norm > self.max_grad_norm:
            for gradient in gradients:
                gradient.mul_(self.max_grad_norm / norm)

    def _count_skip(self, finite: bool) -> None:
        self.skips_in_a_row = 0 if finite else self.skips_in_a_row + 1
        if self.skips_in_a_row >= SKIPS_IN_A_ROW:
            raise InvariantError(
                f"The gradient was not finite in {SKIPS_IN_A_ROW} optimiser steps in a row "
                f"(after {self.steps} good ones). Lower optim.lr, train in float32, or resume "
                "from an earlier checkpoint."
            )

    # Scoring

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
            post_hook: Selects what to keep of a micro-batch's scores; one entry a row, which is 0
                at masked tokens if rows are cut.
            aggregate_fn: Joins the kept tensors of the micro-batches.
        """
        kept = []
        numbers = []
        with self._scoring():
            for micro_batch, rows in self._micro_batches(batch):
                with self._computing():
                    scores = self.scorer(self.module, micro_batch, self.temperature)
                result = post_hook(scores, micro_batch)
                kept.append(result if rows else result[:0])
                numbers.append(rows)
            if isinstance(self.module, FSDPModule):
                # without a backward pass the root's weights would stay gathered, and the optimiser
                # would see them whole
                self.module.reshard()
        if self.cut is not None:
            kept, numbers = [rows_added(kept, numbers, size=len(batch))], [range(len(batch))]
        return aggregate_fn(rows_in_order(kept, numbers))

    def _micro_batches(self, batch: TensorDict) -> Iterable[tuple[TensorDict, Sequence[int]]]:
        """Yield micro-batches on the device with their row indices, equally many on each rank.

        There is at least one. Dummy micro-batches that keep ranks in step carry no row indices:
        they repeat a row, or hold zeros on an empty rank.
        """
        batch = without_texts(batch)
        if self.cut is not None:
            yield from self._parts(batch, self.cut)
            return
        parts: list[Sequence[int]] = []
        failure: ConfigError | None = None
        try:
            parts = micro_batch_rows(
                batch,
                rows=self.micro_batch_size,
                tokens=self.micro_batch_tokens,
                prefix_groups=self.prefix_groups,
            )
        except ConfigError as error:
            failure = error
        if self.micro_batch_tokens is not None:  # only a token budget can fail, on one rank
            fail_together(self.ranks, failure)
        number = max(1, int(self.ranks.maximum(torch.tensor(len(parts)))))
        for rows in parts:
            OCCUPATION.got_on()
            yield take_rows(batch, rows).to(self.device), rows
        for _ in range(number - len(parts)):
            yield (batch[:1] if len(batch) else _row_of_zeros(batch)).to(self.device), ()

    def _parts(
        self, batch: TensorDict, cut: RowCutting
    ) -> Iterable[tuple[TensorDict, Sequence[int]]]:
        """`_micro_batches` where rows are cut."""
        parts = cut(batch) if len(batch) else []
        number = max(1, int(self.ranks.maximum(torch.tensor(len(parts)))))
        for part in parts:
            OCCUPATION.got_on()
            yield take_part(batch, part).to(self.device), part.rows
        dummy = without_places(batch[:1] if len(batch) else _row_of_zeros(batch))
        for _ in range(number - len(parts)):
            yield dummy.to(self.device), ()

    def _idle_tensors(self) -> Iterator[torch.Tensor]:
        """What leaves the device between uses: moments, or the weights of a module that scores."""
        if self.optim is None:
            yield from self.module.parameters()
        elif self.optimizer is not None:
            for state in self.optimizer.state.values():
                yield from (state[kind] for kind in MOMENTS)

    def _with_moments(self) -> contextlib.AbstractContextManager[None]:
        if self.offloaded is None or self.optim is None:
            return contextlib.nullcontext()
        return self.offloaded.resident()

    def _scoring(self) -> contextlib.AbstractContextManager[None]:
        if self.offloaded is None or self.optim is not None:
            return contextlib.nullcontext()
        return self.offloaded.resident()

    def _count_work(self, micro_batch: TensorDict, *, counts: bool) -> None:
        if self.work is None or self.flops is None or not counts:
            return
        work = self.work(self.module, micro_batch)
        self.flops = None if work is None else self.flops + work

    def _reduces(self, last: bool) -> None:
        """Reduce the gradient of the next backward pass over ranks, or leave it for a later one."""
        if self.sharding.reduce_once and isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)

    def _computing(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast to the type of the passes in a single process; in a group FSDP2 casts."""
        if self.compute_dtype is None or self.ranks.group is not None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    # Weights

    def upload_weights(self) -> dict[str, torch.Tensor]:
        """Whole weights and buffers under the module's names, on this rank's device, for rollout.

        Every rank calls it and gets them. On one rank these are the module's own tensors, not
        copies.
        """
        return dict(self.weights_in_turn())

    def weights_in_turn(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole weights and buffers in the module's order, one at a time.

        Every rank consumes them to the end: a sharded tensor is gathered when its turn comes, and
        no rank holds more than it keeps.
        """
        for name, tensor in self.module.state_dict().items():
            yield name, full_tensor(tensor).detach()

    def stage(self, *, copy: bool) -> StagedParts:
        """This rank's parts of weights, moments and the number of steps, to be written.

        Every rank calls it.

        Args:
            copy: Copy them to host memory, so that training can go on while they are written.
        """
        with self._with_moments():
            tensors = state_tensors(self.module, self.optimizer, steps=self.steps)
            return stage(tensors, ranks=self.ranks, copy=copy or self.offloaded is not None)

    def save(self, folder: Path) -> None:
        """Write weights, moments and the number of steps into `folder` (see `saved_state`).

        Every rank calls it and writes its part.

        Raises:
            CheckpointError: A rank cannot write. The others raise InvariantError.
        """
        staged = self.stage(copy=False)
        results: list[WriteResult] = []
        failure: CheckpointError | None = None
        try:
            (folder / SHARDS).mkdir(parents=True, exist_ok=True)
            results = write_parts(staged, folder / SHARDS)
        except OSError as error:
            failure = CheckpointError(f"{folder} could not be written: {error}.")
        fail_together(self.ranks, failure)
        everywhere = self.ranks.gather_objects(results)
        if self.ranks.rank == 0:
            write_metadata(folder / SHARDS, staged, everywhere)
            export_weights(folder)
        self.ranks.gather_objects(None)  # nobody reads before the last file is there

    def load(self, folder: Path) -> None:
        """Resume from what `save` wrote, on any number of ranks.

        Every rank calls it and reads its part.

        Raises:
            CheckpointError: Damaged files, or weights of another model; ranks without such an error
                raise InvariantError.
        """
        failure: CheckpointError | None = None
        try:
            with self._with_moments():
                self.steps = load_state(folder, self.module, self.optimizer)
        except CheckpointError as error:
            failure = error
        fail_together(self.ranks, failure)
        self.skips_in_a_row = 0


def _numbers(scores: TokenScores | torch.Tensor) -> torch.Tensor:
    """A differentiable tensor of the scores, for a dummy backward pass."""
    return scores if isinstance(scores, torch.Tensor) else scores.log_probs_BT


def _with_end(things: Iterable[Thing]) -> Iterator[tuple[Thing, bool]]:
    """Each thing, and whether it is the last."""
    before: list[Thing] = []
    for thing in things:
        if before:
            yield before.pop(), False
        before.append(thing)
    yield from ((thing, True) for thing in before)


def _stacked(scores: TokenScores | torch.Tensor) -> torch.Tensor:
    """Scores as one tensor [B, 1 or 2, T]."""
    if isinstance(scores, torch.Tensor):
        return scores[:, None]
    return torch.stack([scores.log_probs_BT, scores.entropy_BT], dim=1)


def _unstacked(stacked: torch.Tensor) -> Any:
    """The inverse of `_stacked`."""
    if stacked.shape[1] == 1:
        return stacked[:, 0]
    return TokenScores(log_probs_BT=stacked[:, 0], entropy_BT=stacked[:, 1])


def _without_observations(batch: TensorDict) -> TensorDict:
    """Columns of one entry a row or a token, which a loss reads; images are large."""
    columns = {
        name: value
        for name, value in batch.items()
        if isinstance(value, torch.Tensor) and value.ndim <= TOKEN_AXES
    }
    return TensorDict(columns, batch_size=batch.batch_size)


def _row_of_zeros(empty: TensorDict) -> TensorDict:
    """One row of zeros with the tensor columns of a batch without rows."""
    columns = {name: value for name, value in empty.items() if isinstance(value, torch.Tensor)}
    return TensorDict(
        {name: value.new_zeros((1, *value.shape[1:])) for name, value in columns.items()},
        batch_size=[1],
    )
