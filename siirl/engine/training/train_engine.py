"""TrainEngine: one trainable module with its optimiser and schedule, on one rank or spread over
several.

It is blind to the algorithm and to the domain. A *scorer* turns the module and a micro-batch into
log-probs and entropy, or into the values of a critic; a *loss* turns those into a sum; a *weight*
says what the sum is divided by, counted over all rows of all ranks before the first backward pass.
Hence the gradient does not depend on how rows were cut into micro-batches or spread over ranks.
Ranks with fewer rows take part in the others' collective calls with passes that count nothing; an
empty rank, too.

The module stays in evaluation mode: with dropout the ratio of an unchanged policy to itself would
not be 1. A gradient that is not finite is never applied: the step is skipped on all ranks, counted,
and after `SKIPS_IN_A_ROW` of them the run stops.
"""

# B row of this rank's batch

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from tensordict import TensorDict
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import get_total_norm

from siirl.algos.log_probs import TokenScores
from siirl.data_coordinator.protocol.batch import without_texts
from siirl.engine.training.batch_loss import BatchLoss, LossSum, LossTally
from siirl.engine.training.collectives import Collectives, OneProcess, fail_together
from siirl.engine.training.micro_batches import Units, micro_batch_rows, rows_in_order, take_rows
from siirl.engine.training.optimizer import MOMENTS, build_optimizer, trained_parameters
from siirl.engine.training.schedules import learning_rate_factor, warmup_length
from siirl.engine.training.sharding import (
    full_tensor,
    measure_reduction,
    repeated_blocks,
    shard,
    spread_like,
)
from siirl.engine.training.tensor_files import read_tensors, require_fitting, write_tensors
from siirl.errors import CheckpointError, ConfigError, InvariantError, TensorError
from siirl.occupation import OCCUPATION
from siirl.params import ActorArguments, OptimizerArguments

# One gradient that overflowed is bad luck, three in a row are a broken model.
SKIPS_IN_A_ROW = 3

MODEL_FILE, OPTIMIZER_FILE, PROGRESS = "model.safetensors", "optimizer.safetensors", "progress"


Scores = TypeVar("Scores", TokenScores, torch.Tensor)
"""What a scorer says of each token: log-prob and entropy of a policy, or one number, the value of a
critic.
"""
Scores_co = TypeVar("Scores_co", TokenScores, torch.Tensor, covariant=True)


class Scorer(Protocol[Scores_co]):
    """Runs the module on a micro-batch of at least one row; padding rows have an empty
    `response_mask`.
    """

    def __call__(self, module: nn.Module, micro_batch: TensorDict, temperature: float) -> Scores_co:
        """Log-probs and entropy [B, T] of the tokens of `micro_batch`, at `temperature`; or their
        values [B, T].
        """


class WeightReceiver(Protocol):
    """Whoever acts with a copy of the weights."""

    def receive_weights(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Take over whole tensors under the module's names."""


LossFunction = Callable[[Scores, TensorDict], LossSum]
LossWeight = Callable[[TensorDict], torch.Tensor]


@dataclass(frozen=True)
class TrainStep:
    """One optimiser step, the same on every rank."""

    batch: BatchLoss
    applied: bool
    """False where nothing could be learnt, or where the gradient was not finite."""
    grad_norm: float
    """Norm of the whole gradient before clipping."""
    learning_rate: float


class TrainEngine(Generic[Scores]):
    """Trains one module.

    Args:
        module: Same weights on every rank; the engine moves and, on several ranks, shards it in
            place.
        scorer: Turns module and micro-batch into log-probs and entropy, or into values.
        optim: Optimiser and schedule; None for a module that only scores (a reference policy).
        ranks: The processes that train this module together; None: this one alone.
        total_steps: Optimiser steps of the run, for schedules that fall; None if nobody knows.
        micro_batch_size: Rows of one forward pass; the gradient does not depend on it. As
            `actor_rollout_ref.actor`'s by default.
        micro_batch_tokens: Tokens of one forward pass, whatever the number of its rows; None: by
            rows.
        units: Which rows such a pass should not part, because the scorer computes what they share
            once; None: none.
        temperature: Divides the logits; the one that acted. 1, the model as it is, is also what
            acts by default, and a critic has no other.
        max_grad_norm: Clip the gradient to this norm; None does not.
        device: Where this rank computes.
        compute_dtype: Type of the passes; None is the weights' own. Weights, gradients and moments
            stay in the weights' own.
        blocks: Which parts of a module are gathered one at a time on several ranks.
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
        units: Units | None = None,
        temperature: float = 1.0,
        max_grad_norm: float | None = None,
        device: torch.device | str = "cpu",
        compute_dtype: torch.dtype | None = None,
        blocks: Callable[[nn.Module], Iterable[nn.Module]] = repeated_blocks,
    ) -> None:
        if micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size={micro_batch_size} must be at least 1.")
        if micro_batch_tokens is not None and micro_batch_tokens < 1:
            raise ConfigError(f"micro_batch_tokens={micro_batch_tokens} must be at least 1.")
        self.scorer: Scorer[Scores] = scorer
        self.module, self.optim = module, optim
        self.ranks: Collectives = OneProcess() if ranks is None else ranks
        self.total_steps, self.temperature = total_steps, temperature
        self.micro_batch_size, self.micro_batch_tokens, self.units = (
            micro_batch_size,
            micro_batch_tokens,
            units,
        )
        self.max_grad_norm, self.compute_dtype, self.blocks = max_grad_norm, compute_dtype, blocks
        self.device = torch.device(device)
        self.optimizer: torch.optim.AdamW | None = None
        self.gradient_factor = 1.0
        self.steps = 0
        self.share_of_run = 0.0
        self.skips_in_a_row = 0

    def initialize(self) -> "TrainEngine":
        """Move and shard the module, measure how its gradients are reduced, and make the optimiser;
        returns itself.
        """
        self.module.to(self.device).eval()
        if self.ranks.size > 1:
            self.gradient_factor = measure_reduction(
                ranks=self.ranks, device=self.device, compute_dtype=self.compute_dtype
            )
            blocks = self.blocks(self.module)
            shard(
                self.module,
                ranks=self.ranks,
                device=self.device,
                compute_dtype=self.compute_dtype,
                blocks=blocks,
            )
        if self.optim is not None:
            self.warmup = warmup_length(
                scheduler=self.optim.scheduler,
                warmup_steps=self.optim.warmup_steps,
                warmup_ratio=self.optim.warmup_ratio,
                total_steps=self.total_steps,
            )
            self.optimizer = build_optimizer(self.module, self.optim)
            # refuses a schedule that cannot be before the first batch is rolled out
            self.learning_rate()
        return self

    def destroy(self) -> None:
        """Let go of gradients and moments; the process group is its owner's to end."""
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
    ) -> TrainStep:
        """One optimiser step on the rows of all ranks.

        Args:
            batch: This rank's rows; may be none.
            loss_fn: Loss of a micro-batch as a sum.
            loss_weight_fn: What a micro-batch adds to the denominator.
            weight: What this rank adds to it, where that is more than its rows here; None: what
                `loss_weight_fn` says of them.

        Raises:
            TensorError: Bad numbers on this rank; the other ranks raise InvariantError.
            InvariantError: Gradients were not finite for `SKIPS_IN_A_ROW` steps.
        """
        return self.apply_gradient(
            self.accumulate_gradient(batch, loss_fn, loss_weight_fn, weight=weight)
        )

    def accumulate_gradient(
        self,
        batch: TensorDict,
        loss_fn: LossFunction[Scores],
        loss_weight_fn: LossWeight,
        *,
        weight: torch.Tensor | None = None,
    ) -> BatchLoss:
        """The gradient of the whole batch's loss, left in the weights' `grad`; nothing where the
        batch has no weight.
        """
        self.module.zero_grad(set_to_none=True)
        if weight is None:
            weight = loss_weight_fn(batch) if len(batch) else torch.zeros(())
        denominator = float(self.ranks.sum(weight.double().cpu()))
        if denominator == 0:
            return BatchLoss(loss=0.0, weight=0.0, sums={}, maxima={})
        tally = LossTally()
        failure: TensorError | None = None
        for micro_batch, rows in self._micro_batches(batch):
            counts = bool(rows)
            with self._computing():
                scores = self.scorer(self.module, micro_batch, self.temperature)
            try:
                part = loss_fn(scores, micro_batch)
            except (
                TensorError
            ) as error:  # the other ranks wait in the backward pass: join them, then fail together
                failure = failure or error
                part = LossSum(loss=_numbers(scores).sum())
                counts = False
            (part.loss * (self.gradient_factor / denominator if counts else 0.0)).backward()
            tally.add(part, counts=counts)
        fail_together(self.ranks, failure)
        return tally.total(self.ranks, weight=denominator)

    def apply_gradient(self, batch_loss: BatchLoss) -> TrainStep:
        """Clip the gradient and move the weights, unless there is none or it is not finite; the
        same decision on every rank.
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
            self.optimizer.step()
            self.steps += 1
        self.module.zero_grad(set_to_none=True)
        return TrainStep(batch=batch_loss, applied=finite, grad_norm=norm, learning_rate=rate)

    def keep_up(self, share_of_run: float) -> None:
        """Tell how much of the run is done, in [0, 1]: schedules fall with it where filters leave
        fewer optimiser steps than planned.
        """
        self.share_of_run = share_of_run

    def learning_rate(self) -> float:
        """Of the next optimiser step."""
        assert self.optim is not None
        step = self.steps
        if self.total_steps is not None and step >= self.warmup:
            step = max(step, int(self.share_of_run * self.total_steps))
        factor = learning_rate_factor(
            scheduler=self.optim.scheduler,
            step=step,
            warmup=self.warmup,
            total_steps=self.total_steps,
        )
        return self.optim.lr * factor

    def _clip(self, gradients: list[torch.Tensor], norm: float) -> None:
        """Scale by `max_grad_norm / norm` where that is below 1."""
        if self.max_grad_norm is not None and norm > self.max_grad_norm:
            for gradient in gradients:
                gradient.mul_(self.max_grad_norm / norm)

    def _count_skip(self, finite: bool) -> None:
        self.skips_in_a_row = 0 if finite else self.skips_in_a_row + 1
        if self.skips_in_a_row >= SKIPS_IN_A_ROW:
            raise InvariantError(
                f"The gradient was not finite in {SKIPS_IN_A_ROW} optimiser steps in a row (after {self.steps} good ones). Lower optim.lr, "
                "train in float32, or go back to an earlier checkpoint."
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
            batch: This rank's rows; may be none, and the result then is empty.
            post_hook: What to keep of a micro-batch's scores; one entry a row.
            aggregate_fn: Puts the kept things of the micro-batches together.
        """
        kept, numbers = [], []
        for micro_batch, rows in self._micro_batches(batch):
            with self._computing():
                scores = self.scorer(self.module, micro_batch, self.temperature)
            result = post_hook(scores, micro_batch)
            kept.append(result if rows else result[:0])
            numbers.append(rows)
        if isinstance(self.module, FSDPModule):
            # without a backward pass the root's weights would stay whole, under the eyes of the
            # optimiser
            self.module.reshard()
        return aggregate_fn(rows_in_order(kept, numbers))

    def _micro_batches(self, batch: TensorDict) -> Iterable[tuple[TensorDict, Sequence[int]]]:
        """Micro-batches on the device with their row numbers, as many on each rank as on the one
        with most, and at least one.

        Those added for the others' sake have no row numbers: a row that is there already, or a row
        of zeros on an empty rank.
        """
        batch = without_texts(batch)
        parts: list[Sequence[int]] = []
        failure: ConfigError | None = None
        try:
            parts = micro_batch_rows(
                batch, rows=self.micro_batch_size, tokens=self.micro_batch_tokens, units=self.units
            )
        except ConfigError as error:
            failure = error
        if self.micro_batch_tokens is not None:  # only a budget can fail, on one rank alone
            fail_together(self.ranks, failure)
        number = max(1, int(self.ranks.maximum(torch.tensor(len(parts)))))
        for rows in parts:
            OCCUPATION.got_on()
            yield take_rows(batch, rows).to(self.device), rows
        for _ in range(number - len(parts)):
            yield (batch[:1] if len(batch) else _row_of_zeros(batch)).to(self.device), ()

    def _computing(self) -> contextlib.AbstractContextManager[Any]:
        """On one rank the type of the passes is autocast's business, on several FSDP2's."""
        if self.compute_dtype is None or self.ranks.size > 1:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    # Weights

    def upload_weights(self, receiver: WeightReceiver, version: int) -> None:
        """Hand the weights of all ranks, whole, to whoever acts with a copy of them."""
        receiver.receive_weights(self.rollout_state(), version)

    def rollout_state(self) -> dict[str, torch.Tensor]:
        """Whole weights and buffers under the module's names, on this rank's device; every rank
        calls it and gets them.

        On one rank these are the module's own tensors, not copies.
        """
        return {
            name: full_tensor(tensor).detach() for name, tensor in self.module.state_dict().items()
        }

    def save(self, folder: Path) -> None:
        """Write weights, moments and the number of steps into `folder`; every rank calls it, rank 0
        writes.

        Raises:
            OSError: On rank 0, if it cannot write.
        """
        model = {
            name: full_tensor(tensor).cpu() for name, tensor in _saved_tensors(self.module).items()
        }
        moments = self._moments()
        if self.ranks.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            write_tensors(folder / MODEL_FILE, model)
            write_tensors(folder / OPTIMIZER_FILE, moments)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote, on any number of ranks; every rank calls it, rank 0 reads.

        Raises:
            CheckpointError: A truncated file or another model, on rank 0; InvariantError on the
                others.
        """
        model: dict[str, torch.Tensor] = {}
        moments: dict[str, torch.Tensor] = {}
        failure: CheckpointError | None = None
        if self.ranks.rank == 0:
            try:
                model, moments = self._read(folder)
            except CheckpointError as error:
                failure = error
        fail_together(self.ranks, failure)
        for name, tensor in _saved_tensors(self.module).items():
            with torch.no_grad():
                tensor.copy_(spread_like(model.get(name), tensor, ranks=self.ranks))
        if self.optimizer is not None:
            self._load_moments(self.optimizer, moments)
        self.skips_in_a_row = 0

    def _read(self, folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        model, moments = read_tensors(folder / MODEL_FILE), {}
        require_fitting(
            folder / MODEL_FILE,
            found=model,
            expected={n: t.shape for n, t in _saved_tensors(self.module).items()},
        )
        if self.optimizer is not None:
            moments = read_tensors(folder / OPTIMIZER_FILE)
            expected = {PROGRESS: torch.Size([2])}
            if int(moments.get(PROGRESS, torch.zeros(2))[1]):
                expected |= {
                    f"{kind}/{name}": w.shape
                    for name, w in trained_parameters(self.module)
                    for kind in MOMENTS
                }
                expected |= {
                    f"step/{name}": torch.Size([]) for name, _ in trained_parameters(self.module)
                }
            require_fitting(folder / OPTIMIZER_FILE, found=moments, expected=expected)
        return model, moments

    def _moments(self) -> dict[str, torch.Tensor]:
        """State of the optimiser by weight, and `progress`: applied steps, and whether there is a
        state yet.
        """
        state = {} if self.optimizer is None else self.optimizer.state
        tensors = {PROGRESS: torch.tensor([self.steps, int(bool(state))])}
        if state:
            for name, weight in trained_parameters(self.module):
                tensors |= {
                    f"{kind}/{name}": full_tensor(state[weight][kind]).cpu()
                    for kind in (*MOMENTS, "step")
                }
        return tensors

    def _load_moments(self, optimizer: torch.optim.AdamW, moments: dict[str, torch.Tensor]) -> None:
        scalars = {
            name: tensor.tolist()
            for name, tensor in moments.items()
            if name == PROGRESS or name.startswith("step/")
        }
        scalars = self.ranks.broadcast_object(scalars)
        self.steps, has_state = scalars[PROGRESS]
        optimizer.state.clear()
        if not has_state:
            return
        for name, weight in trained_parameters(self.module):
            state = {
                kind: spread_like(moments.get(f"{kind}/{name}"), weight, ranks=self.ranks)
                for kind in MOMENTS
            }
            optimizer.state[weight] = {**state, "step": torch.tensor(scalars[f"step/{name}"])}


def _numbers(scores: TokenScores | torch.Tensor) -> torch.Tensor:
    """Something of the scores through which a backward pass can go."""
    return scores if isinstance(scores, torch.Tensor) else scores.log_probs_BT


def _saved_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers of a checkpoint; a weight with two names (tied) appears once."""
    names = module.state_dict().keys()
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor for name, tensor in tensors if name in names}


def _row_of_zeros(empty: TensorDict) -> TensorDict:
    """One row with the columns of a batch without rows; columns that are no tensors are left out."""
    columns = {name: value for name, value in empty.items() if isinstance(value, torch.Tensor)}
    return TensorDict(
        {name: value.new_zeros((1, *value.shape[1:])) for name, value in columns.items()},
        batch_size=[1],
    )
