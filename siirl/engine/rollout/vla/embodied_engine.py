"""Inference engine of VLA policies: one forward pass answers the waiting requests of many episodes.

By default the engine holds the trained module itself, so one rank has a single copy of the weights.
The engine has no generator: each request brings the uniform numbers of its own episode, and the
policy's distribution samples at them. An episode therefore does not depend on the other episodes of
its batch.
"""

# N request, T token of a chunk, U uniform number

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.algos.distribution_checks import check_own, require_distribution, require_scores
from siirl.algos.distributions import ActionDistribution
from siirl.engine.rollout.acting import ActRequest, ActResponse
from siirl.engine.rollout.engine import EngineCounts
from siirl.errors import ConfigError, RunFailed
from siirl.models.policy import Policy
from siirl.occupation import OCCUPATION

# A pass mostly reads weights: six rows of the tiny policy take three times as long as one. While a
# third of the running episodes wait, the simulators work on the others.
FEWEST_SHARE = 1 / 3


class EmbodiedEngine:
    """Batches the requests of concurrently running episodes.

    Args:
        policy: The policy.
        temperature: Temperature of the distribution, for sampling and for the log-probs.
        top_p: Draw from the smallest set of tokens with this probability; log-probs remain those of
            the whole distribution.
        lockstep: Deterministic mode: answer only when every episode that can be running is waiting,
            sorted by uid and padded to `batch_rows` rows, so that floating-point results do not
            depend on timing.
        batch_rows: Largest number of observations in one forward pass.
        compute_dtype: Type of the forward pass, the same as in training; None: the weights' type.
            Weights that already have that type (`siirl.engine.training.weight_sync.acting_copy`)
            compute as FSDP2 does: on inputs of that type, without autocast.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        temperature: float,
        lockstep: bool,
        batch_rows: int,
        top_p: float = 1.0,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        self.policy = policy
        self.device = next(policy.parameters()).device
        self.compute_dtype = compute_dtype
        types = {weight.dtype for weight in policy.parameters()}
        self.whole_dtype = compute_dtype if types == {compute_dtype} else None
        """Common dtype of weights and passes; None if they differ."""
        self.temperature = temperature
        self.top_p = top_p
        self.lockstep = lockstep
        self.batch_rows = batch_rows
        self.policy_version = 0
        self.unfinished = 0
        self.at_once = 0
        self.waiting: list[tuple[ActRequest, asyncio.Future[ActResponse]]] = []
        self.flush_scheduled = False
        self.counts = EngineCounts()
        self._checked = False

    def rest(self) -> None:
        """See `RolloutEngine`; does nothing, because the policy is the trained module."""

    def close(self) -> None:
        """See `RolloutEngine`; does nothing."""

    def expect(self, *, episodes: int, at_once: int) -> None:
        """Announce `episodes` more episodes, of which `at_once` can run at the same time.

        They determine how many requests a batch waits for.
        """
        self.unfinished += episodes
        self.at_once = at_once

    def episode_ended(self) -> None:
        """Report the end of one expected episode, finished or failed."""
        self.unfinished -= 1
        self._schedule_flush()

    async def act(self, request: ActRequest) -> ActResponse:
        """Generate a chunk of actions for one observation, in a batch with other requests."""
        future: asyncio.Future[ActResponse] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        self._schedule_flush()
        try:
            return await future
        finally:
            if future.cancelled():  # else it would take the place of a running episode
                self.waiting = [entry for entry in self.waiting if entry[1] is not future]

    def interrupt(self) -> None:
        """Do nothing: a chunk takes one forward pass, and nothing runs between two passes."""

    def update_weights(self, version: int) -> None:
        """Set the version of the policy's weights."""
        self.policy_version = version

    def take_stats(self) -> dict[str, float]:
        """Seconds in forward passes, requests answered and forward passes, since the last call."""
        return self.counts.take()

    def take_memory(self) -> dict[str, float]:
        """Nothing: the policy keeps no keys and values between passes."""
        return {}

    def _schedule_flush(self) -> None:
        # call_soon: requests that become ready in this iteration of the loop join the same batch.
        if self.waiting and not self.flush_scheduled:
            self.flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self.flush_scheduled = False
        if not self.waiting or len(self.waiting) < self._fewest_rows():
            return
        batch, self.waiting = self.waiting, []
        if self.lockstep:
            batch.sort(key=lambda item: item[0].uid)
        for start in range(0, len(batch), self.batch_rows):
            part = batch[start : start + self.batch_rows]
            try:
                responses = self._forward([request for request, _ in part])
            except Exception as error:
                # a waiting episode gets the error, and would wait forever otherwise
                waiting = [future for _, future in batch[start:] if not future.done()]
                for future in waiting:
                    future.set_exception(error)
                if not waiting:
                    raise
                return
            for (_, future), response in zip(part, responses, strict=True):
                if not future.done():
                    future.set_result(response)

    def _fewest_rows(self) -> int:
        """Number of requests that a forward pass waits for."""
        # No deadlock: every running episode sends another request or ends.
        running = min(self.unfinished, self.at_once)
        return running if self.lockstep else round(running * FEWEST_SHARE)

    @torch.inference_mode()
    def _forward(self, requests: list[ActRequest]) -> list[ActResponse]:
        begin = time.perf_counter()
        rows = requests
        if self.lockstep:
            rows = requests + [requests[-1]] * (self.batch_rows - len(requests))
        proprioception_NP = self._stack([row.proprioception for row in rows])
        if proprioception_NP is not None and self.whole_dtype is not None:
            proprioception_NP = proprioception_NP.to(self.whole_dtype)
        with self._precision():
            output = self.policy(
                pixel_values=self._stack([row.pixel_values for row in rows]),
                proprioception=proprioception_NP,
                instruction_ids=self._tensor([row.instruction_ids for row in rows]),
            )
            distribution = self._tempered(self._distribution(output))
            if not self._checked:
                check_own(distribution, uniforms=self.policy.uniforms_per_chunk)
                self._checked = True
            chosen, scored = self._choose(distribution, [row.uniforms for row in rows])
            require_scores(distribution, log_prob=scored)
            values = distribution.values(chosen).cpu().numpy()
        choices, log_probs = chosen.cpu().numpy(), scored.cpu().numpy()
        self._require_finite(values=values, log_probs=log_probs)
        self.counts.busy_s += time.perf_counter() - begin
        self.counts.calls += len(requests)
        self.counts.forward_passes += 1
        OCCUPATION.record_progress()
        return [
            ActResponse(choices[i], values[i], log_probs[i], self.policy_version)
            for i in range(len(requests))
        ]

    def _distribution(self, output: Any) -> ActionDistribution:
        name, expected = type(self.policy).__name__, self.policy.distribution
        distribution = require_distribution(output, policy=name)
        if not isinstance(distribution, expected):
            raise ConfigError(
                f"{name}.forward returned a {type(distribution).__name__}, but {name}.distribution "
                f"is {expected.__name__}, by which settings were checked: name the class that "
                "forward returns."
            )
        if distribution.shape[1] != self.policy.tokens_per_chunk:
            raise ConfigError(
                f"{name}.forward returned a distribution of {distribution.shape[1]} tokens, but a "
                f"chunk has {self.policy.tokens_per_chunk}: chunk_length="
                f"{self.policy.chunk_length} times the dimensions of an action."
            )
        return distribution

    def _tempered(self, distribution: ActionDistribution) -> ActionDistribution:
        tempered: Any = distribution.tempered(self.temperature)  # a user's method
        if not isinstance(tempered, type(distribution)):
            raise ConfigError(
                f"{type(distribution).__name__}.tempered returned a {type(tempered).__name__}: it "
                "must return a distribution of its own class."
            )
        return tempered

    def _require_finite(self, **found: NDArray[Any]) -> None:
        for what, numbers in found.items():
            if not np.isfinite(numbers).all():
                raise RunFailed(
                    f"{type(self.policy).__name__} acted with {what.replace('_', '-')} that are "
                    "not finite: its weights or its observations have grown too large, or its "
                    "deviation is too small. Lower actor_rollout_ref.actor.optim.lr, standardise "
                    "observations, or bound the deviation."
                )

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.compute_dtype is None or self.whole_dtype is not None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype, cache_enabled=False)

    def _tensor(self, arrays: Sequence[NDArray[Any]]) -> torch.Tensor:
        return torch.from_numpy(np.stack(arrays)).to(self.device)

    def _stack(self, arrays: Sequence[NDArray[Any] | None]) -> torch.Tensor | None:
        """All arrays as one tensor; None if the environment has no such observation."""
        present = [array for array in arrays if array is not None]
        return self._tensor(present) if present else None

    def _choose(
        self, distribution: ActionDistribution, uniforms: list[NDArray[np.float32] | None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choices [N, T, ...] and log-probs: sampled for rows with uniforms, else the mode."""
        present = [row for row in uniforms if row is not None]
        if not present:
            return distribution.act(None)
        absent = np.zeros_like(present[0])
        uniforms_NU = self._tensor([absent if row is None else row for row in uniforms])
        sampled = distribution.act(uniforms_NU, top_p=self.top_p)
        if len(present) == len(uniforms):
            return sampled
        is_sampled_N = torch.tensor([row is not None for row in uniforms], device=self.device)
        choices, log_probs = (
            torch.where(is_sampled_N.view(-1, *[1] * (drawn.ndim - 1)), drawn, most_likely)
            for drawn, most_likely in zip(sampled, distribution.act(None), strict=True)
        )
        return choices, log_probs
