"""TrainEngine: trains one module with its optimiser and schedule, on one rank or several.

The engine is blind to algorithm and domain. A *scorer* turns the module and a micro-batch into
numbers of each token (`ScoringEngine`), and a *loss* turns those into a sum. A *weight* is the
denominator, counted over all rows of all ranks before the first backward pass. The gradient
therefore does not depend on how rows are cut into micro-batches or spread over ranks. A rank with
fewer rows, or none, joins the collective calls of the others with dummy passes that add nothing.

A gradient that is not finite is never applied: all ranks skip and count the step, and the run stops
after `SKIPS_IN_A_ROW` of them.
"""

# B row of this rank's batch

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
from tensordict import TensorDict
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import get_total_norm
from torch.profiler import record_function

from siirl.engine.training.batch_loss import (
    BatchLoss,
    LossFunction,
    LossSum,
    LossTally,
    LossWeight,
    Scores,
    TrainStep,
    require_gradient,
)
from siirl.engine.training.collectives import raise_on_all_ranks
from siirl.engine.training.frozen_weights import FrozenWeights
from siirl.engine.training.offload import STAYING, OffloadedTensors, ResidentTensors
from siirl.engine.training.optimizer import (
    MOMENTS,
    build_optimizer,
    clip_gradients,
    trained_parameters,
)
from siirl.engine.training.saved_state import (
    StagedState,
    load_state,
    stage_state,
    state_tensors,
    write_state,
)
from siirl.engine.training.schedules import schedule_factor
from siirl.engine.training.score_gradient import gradient_in_scores, stacked
from siirl.engine.training.scoring_engine import ScoringEngine
from siirl.engine.training.sharding import measure_reduction
from siirl.engine.training.tensor_files import Types
from siirl.errors import ConfigError, InvariantError, TensorError
from siirl.models.weight_rows import full_tensor
from siirl.params import OptimizerArguments

logger = logging.getLogger(__name__)

NAMED = 5  # weights in a message
# A single overflow of the gradient can happen; three in a row mean a broken model.
SKIPS_IN_A_ROW = 3

# Ranges in the trace of a profiled step (`siirl.dag_worker.step_trace`).
TRAINED = "train micro-batch"
OPTIMISED = "optimiser step"


class TrainEngine(ScoringEngine[Scores]):
    """Trains one module.

    Args:
        optim: Optimiser and schedule; None for a module that only scores (a reference policy).
        total_steps: Optimiser steps of the run, for schedules that fall; None if unknown.
        max_grad_norm: Clip the gradient to this norm; None: no clipping.
        offload: Keep idle tensors in host memory: moments outside of the optimiser's step, or, for
            a module that only scores, weights outside of its passes.
        work: Operations of a training pass over a micro-batch, summed in `flops`. None: not
            counted.
        scoring: Further arguments of `ScoringEngine`. Weights, gradients and moments keep the type
            of the weights, whatever `compute_dtype` is.
    """

    def __init__(
        self,
        *,
        optim: OptimizerArguments | None,
        total_steps: int | None = None,
        max_grad_norm: float | None = None,
        offload: bool = False,
        work: Callable[[nn.Module, TensorDict], float | None] | None = None,
        **scoring: Any,
    ) -> None:
        super().__init__(offload=offload and optim is None, **scoring)
        self.optim = optim
        self.total_steps = total_steps
        self.max_grad_norm = max_grad_norm
        self.frozen = FrozenWeights(self.module)
        self.moments: ResidentTensors = STAYING
        if offload and optim is not None:
            self.moments = OffloadedTensors(self._moments)
        self.work = work
        self.flops: float | None = None if work is None else 0.0
        self.optimizer: torch.optim.AdamW | None = None
        self._trained: list[nn.Parameter] = []
        self.gradient_factor = 1.0
        self.steps = 0
        self.progress = 0.0
        self.rate_factor = 1.0
        """Factor of the learning rate beside its schedule (`siirl.engine.actor.actor`)."""
        self.skips_in_a_row = 0

    def initialize(self) -> Self:
        """See `ScoringEngine`; also measures the gradient reduction and builds the optimiser."""
        if self.ranks.group is not None:
            self.gradient_factor = measure_reduction(
                ranks=self.ranks,
                device=self.device,
                compute_dtype=self.compute_dtype,
                shard_ranks=self.sharding.shard_ranks,
            )
        super().initialize()
        self._trained = [weight for _, weight in trained_parameters(self.module)]
        if self.optim is not None:
            self.optimizer = build_optimizer(self.module, self.optim)
            # raises for an impossible schedule before the first rollout
            self.learning_rate()
        if self.weights is STAYING:  # a module whose weights leave its device is never saved
            self.frozen.begin()
        self.moments.leave()
        return self

    def destroy(self) -> None:
        """Drop gradients and moments; the process group is left to its owner."""
        self._forget_gradient()
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
            loss_weight_fn: Contribution of a micro-batch to the denominator.
            weight: Contribution of this rank to the denominator, if it counts more rows than
                `batch`; None: `loss_weight_fn(batch)`.
            sums_tokens: Whether the loss is a sum over tokens that do not depend on each other. If
                it is not and rows are cut, all parts are scored before the first backward pass.

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
        self._forget_gradient()
        if weight is None:
            weight = loss_weight_fn(batch) if len(batch) else torch.zeros(())
        denominator = float(self.ranks.sum(weight.double().cpu()))
        if denominator == 0:
            return BatchLoss(loss=0.0, weight=0.0, sums={}, maxima={})
        scale = self.gradient_factor / denominator
        whole_rows = self.micro_batches.cut is not None and not sums_tokens
        passes = self._through_scores if whole_rows else self._through_losses
        with self.computed.passes():
            return passes(batch, loss_fn, denominator=denominator, scale=scale)

    def _through_losses(
        self,
        batch: TensorDict,
        loss_fn: LossFunction[Scores],
        *,
        denominator: float,
        scale: float,
    ) -> BatchLoss:
        """The gradient of a loss that is the sum of its micro-batches' losses."""
        tally = LossTally()
        failure: TensorError | None = None
        for micro_batch, rows, last in self.micro_batches.of(batch):
            counts = bool(rows)
            self._reduces(last)
            self._count_work(micro_batch, counts=counts)
            with record_function(TRAINED):
                with self._computing():
                    scores = self.scorer(self.module, micro_batch, self.temperature)
                try:
                    part = loss_fn(scores, micro_batch)
                    require_gradient(part)
                except TensorError as error:
                    # the other ranks wait in the backward pass: join them, then fail together
                    failure = failure or error
                    part = LossSum(loss=stacked(scores).sum())
                    counts = False
                (part.loss * (scale if counts else 0.0)).backward()
                tally.add(part, counts=counts)
        with raise_on_all_ranks(self.ranks):
            if failure is not None:
                raise failure
        return tally.total(self.ranks, weight=denominator)

    def _through_scores(
        self,
        batch: TensorDict,
        loss_fn: LossFunction[Scores],
        *,
        denominator: float,
        scale: float,
    ) -> BatchLoss:
        """The gradient of a loss that needs whole rows, computed from parts of rows
        (`score_gradient`).
        """
        tally = LossTally()
        in_scores = gradient_in_scores(
            self.forward(batch, lambda scores, _: stacked(scores)),
            batch,
            loss_fn,
            tally=tally,
            ranks=self.ranks,
        )
        for micro_batch, rows, last in self.micro_batches.of(batch):
            self._reduces(last)
            self._count_work(micro_batch, counts=bool(rows))
            with record_function(TRAINED):
                with self._computing():
                    scores = self.scorer(self.module, micro_batch, self.temperature)
                pull = stacked(scores)
                if rows:
                    gradient = in_scores[torch.as_tensor(rows, device=in_scores.device)]
                    (pull * gradient).sum().mul(scale).backward()
                else:
                    (pull.sum() * 0.0).backward()
        return tally.total(self.ranks, weight=denominator)

    def apply_gradient(self, batch_loss: BatchLoss) -> TrainStep:
        """Clip the gradient and update the weights, with the same decision on every rank.

        The step is skipped if the batch had no weight or the gradient is not finite.
        """
        if self.optimizer is None:
            raise ConfigError(
                "This engine has no optimiser: it was made with optim=None, or not initialised."
            )
        rate = self.learning_rate()
        if batch_loss.weight == 0:
            return TrainStep(batch=batch_loss, applied=False, grad_norm=0.0, learning_rate=rate)
        with record_function(OPTIMISED):
            gradients = [weight.grad for weight in self._trained if weight.grad is not None]
            if self.steps == 0 and len(gradients) < len(self._trained) and self.ranks.rank == 0:
                self._name_unreached()
            norm = float(full_tensor(get_total_norm(gradients)))
            finite = math.isfinite(norm)
            self._count_skip(finite)
            if finite:
                clip_gradients(gradients, norm=norm, limit=self.max_grad_norm)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                with self.moments.resident():
                    self.optimizer.step()
                self.steps += 1
            self._forget_gradient()
        return TrainStep(batch=batch_loss, applied=finite, grad_norm=norm, learning_rate=rate)

    def _name_unreached(self) -> None:
        names = [name for name, weight in trained_parameters(self.module) if weight.grad is None]
        logger.warning(
            "No gradient reaches %s, so training does not change %s. If that is intended, freeze "
            "with requires_grad_(False); otherwise check that the loss depends on it.",
            ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if names[NAMED:] else ""),
            "them" if len(names) > 1 else "it",
        )

    def _forget_gradient(self) -> None:
        for weight in self._trained:
            weight.grad = None

    def set_progress(self, progress: float) -> None:
        """Set the share of the run that is done, in [0, 1].

        Schedules fall with it where filters leave fewer optimiser steps than planned.
        """
        self.progress = progress

    def learning_rate(self) -> float:
        """Learning rate of the next optimiser step."""
        assert self.optim is not None
        return self.rate_factor * self.schedule_factor() * self.optim.lr

    def schedule_factor(self) -> float:
        """Factor of the schedule in the next optimiser step."""
        assert self.optim is not None
        return schedule_factor(
            self.optim, step=self.steps, progress=self.progress, total_steps=self.total_steps
        )

    def _count_skip(self, finite: bool) -> None:
        self.skips_in_a_row = 0 if finite else self.skips_in_a_row + 1
        if self.skips_in_a_row >= SKIPS_IN_A_ROW:
            raise InvariantError(
                f"The gradient was not finite in {SKIPS_IN_A_ROW} optimiser steps in a row "
                f"(after {self.steps} good ones). Lower optim.lr, train in float32, or resume "
                "from an earlier checkpoint."
            )

    def _moments(self) -> Iterator[torch.Tensor]:
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                yield from (state[kind] for kind in MOMENTS)

    def _count_work(self, micro_batch: TensorDict, *, counts: bool) -> None:
        if self.work is None or self.flops is None or not counts:
            return
        work = self.work(self.module, micro_batch)
        self.flops = None if work is None else self.flops + work

    def _reduces(self, last: bool) -> None:
        """Reduce the gradient of the next backward pass over ranks, or defer the reduction to a
        later pass.
        """
        if self.sharding.reduce_once and isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)

    # Checkpoints

    def stage(self, *, copy: bool, frozen: Types, linked: bool = False) -> StagedState:
        """This rank's parts of weights, moments and the number of steps, to be written.

        Every rank calls it.

        Args:
            copy: Copy them to host memory, so that training can continue while they are written.
            frozen: Weights that are frozen on all ranks.
            linked: Whether the file of these is already in place.
        """
        with self.moments.resident():
            return stage_state(
                state_tensors(self.module, self.optimizer, steps=self.steps),
                frozen=frozen,
                linked=linked,
                ranks=self.ranks,
                copy=copy or self.moments is not STAYING,
            )

    def save(self, folder: Path) -> None:
        """Write weights, moments and the number of steps into `folder` (see `saved_state`).

        Every rank calls it and writes its part.

        Raises:
            CheckpointError: A rank cannot write. The others raise InvariantError.
        """
        staged = self.stage(copy=False, frozen=self.frozen.types(self.ranks))
        write_state(staged, folder, ranks=self.ranks)

    def load(self, folder: Path) -> None:
        """Resume from files of `save`, on any number of ranks.

        Every rank calls it and reads its part.

        Raises:
            CheckpointError: Damaged files, or weights of another model; ranks without such an error
                raise InvariantError.
        """
        with raise_on_all_ranks(self.ranks), self.moments.resident():
            self.steps = load_state(folder, self.module, self.optimizer)
        self.frozen.begin()
        self.skips_in_a_row = 0
