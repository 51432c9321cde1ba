"""Text engine with continuous batching over a transformers model, by default the trained module
itself.

Every pass extends all running requests by one token. Finished requests leave at once, and waiting
ones join. The prompts of joining requests are prefilled in one pass, each distinct prompt once,
without its last token. The next pass takes that token together with the newest tokens of the other
rows, so tokens are drawn in only one place.

A pass is synchronous. Between two passes the event loop runs other tasks, so environments answer
while other episodes generate. Left out: keeping the keys and values of an episode between its
turns, and several GPUs for one model; vLLM has both.
"""

# R running row, P prompt, T token of a prompt, D hidden, V token of the vocabulary

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.algos.products import wide_product
from siirl.algos.sampling import Sampling, draw
from siirl.engine.rollout.admission import EMPTY_RESPONSE, PendingRequest
from siirl.engine.rollout.generation import FinishReason
from siirl.engine.rollout.hf.key_value_cache import SlotCache, slot_attention
from siirl.engine.rollout.hf.prompt_pictures import seen_by_prompts
from siirl.engine.rollout.hf.running_rows import RunningRows
from siirl.engine.rollout.stop_strings import longest_in_tokens, says_stop
from siirl.engine.rollout.text_engine_base import InProcessTextEngine
from siirl.errors import ConfigError
from siirl.models.chat import ChatTokenizer
from siirl.models.language_model import LanguageModel
from siirl.occupation import OCCUPATION

if TYPE_CHECKING:  # these modules import Pillow
    from siirl.models.seen_pictures import Pictures
    from siirl.models.vision_inputs import SeenPictures

# A prefill costs about one decoding pass, whatever its size: joining one by one would halve the
# speed. Joining requests therefore wait until they are this share of the running rows, or have
# waited for this many passes.
FEWEST_JOINERS_SHARE = 1 / 8
LONGEST_WAIT_PASSES = 16
# Tokens of one prefill pass, including padding. Hidden states of 8192 tokens of a 7B model take
# under 1 GB.
MOST_PREFILL_TOKENS = 8192


@dataclass(frozen=True)
class PrefillPrompt:
    """A prompt to prefill, without its last token; equal ones are computed once."""

    ids: tuple[int, ...] = ()
    pictures: Pictures | None = None

    def __len__(self) -> int:
        return len(self.ids)


class HFEngine(InProcessTextEngine):
    """Continues many prompts at once with a transformers decoder.

    Args:
        model: The language model.
        tokenizer: Provides the tokens that end a turn, and decodes tokens to find stop strings.
        temperature: Divides the logits, for sampling and for the log-probs; 1 leaves them as they
            are.
        top_p: Draw from the smallest set of tokens with this probability; log-probs remain those of
            the whole distribution.
        top_k: Draw from this many most likely tokens; None: from all.
        max_running: Largest number of requests in one forward pass; others wait. The default is the
            number of episodes that `InferenceEngine` runs at once by default.
        lockstep: Deterministic mode; see `Admission`. The rows of a pass, and so its floating-point
            results, then do not depend on timing.
        compute_dtype: Type of the forward pass, the same as in training; None: the weights' type.

    Raises:
        ConfigError: The model does not pack (`LanguageModel.packs`).
    """

    def __init__(
        self,
        *,
        model: LanguageModel,
        tokenizer: ChatTokenizer,
        temperature: float = 1.0,
        max_running: int = 64,
        lockstep: bool = False,
        top_p: float = 1.0,
        top_k: int | None = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(lockstep=lockstep)
        if not model.packs:
            raise ConfigError(
                f"rollout=hf cannot generate with {type(model.causal_lm).__name__}, whose layers "
                "keep more than keys and values by position, or take no mask between texts: set "
                "rollout=vllm."
            )
        self.model = model
        self.tokenizer = tokenizer
        self.longest = model.max_length
        self.device = next(model.parameters()).device
        self.sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
        self.max_running = max_running
        self.compute_dtype = compute_dtype
        self.joining: deque[PendingRequest] = deque()
        self.passes_waited = 0
        self.rows = RunningRows()
        self.cache = SlotCache()
        self.largest_cache = 0
        """Bytes, since the last `take_memory`."""
        self.stop_ids = np.array(sorted(tokenizer.stop_ids), np.int64)

    def interrupt(self) -> None:
        """See `TextEngine`; requests that have not begun return no tokens."""
        for row, pending in enumerate(self.rows.pending):
            pending.resolve(self.rows.response(row, "abort"))
        for pending in (*self.admission.waiting, *self.joining):
            pending.resolve(EMPTY_RESPONSE)
        self._clear()

    def take_memory(self) -> dict[str, float]:
        """See `TextEngine`."""
        taken, self.largest_cache = self.largest_cache, self.cache.nbytes
        return {"keys_values": float(taken)}

    # Scheduling

    def _step(self) -> bool:
        """Let requests join, continue running ones by one token, answer those that ended."""
        self.joining += self.admission.admit(idle=not self.rows.count and not self.joining)
        if self._should_join():
            self._join()
        if self.rows.count:
            self._continue()
        self.largest_cache = max(self.largest_cache, self.cache.nbytes)
        if not self._all_pending():
            self.cache.release()
        return bool(self.rows.count or self.joining)

    def _should_join(self) -> bool:
        possible = min(len(self.joining), self.max_running - self.rows.count)
        if possible == 0:
            return False
        enough = possible >= self.rows.count * FEWEST_JOINERS_SHARE
        self.passes_waited = 0 if enough else self.passes_waited + 1
        return enough or self.passes_waited >= LONGEST_WAIT_PASSES

    def _withdraw(self, pending: PendingRequest) -> None:
        if pending in self.admission.waiting:
            self.admission.waiting.remove(pending)
        elif pending in self.joining:
            self.joining.remove(pending)
        elif pending in self.rows.pending:
            self._leave(np.array([self.rows.pending.index(pending)]))

    def _all_pending(self) -> list[PendingRequest]:
        return [*self.rows.pending, *self.joining, *self.admission.waiting]

    def _clear(self) -> None:
        self.rows = RunningRows()
        self.cache = SlotCache()
        self.admission.waiting = []
        self.joining = deque()

    # Forward passes

    def _join(self) -> None:
        """Assign free rows to waiting requests, and prefill their prompts."""
        self.passes_waited = 0
        first = self.rows.count
        num_joiners = min(len(self.joining), self.max_running - first)
        joiners = [self.joining.popleft() for _ in range(num_joiners)]
        self.rows.join(joiners)
        self.cache.reserve(
            rows=self.rows.count, length=max(len(pending.request.input_ids) for pending in joiners)
        )
        slots_of: dict[PrefillPrompt, list[int]] = {}
        for slot, pending in enumerate(joiners, start=first):
            request = pending.request
            prompt = PrefillPrompt(request.input_ids[:-1], request.pictures)
            slots_of.setdefault(prompt, []).append(slot)
        slots_of.pop(PrefillPrompt(), None)  # prompts of one token: the next pass takes it
        for prompts in portions(slots_of, most_tokens=MOST_PREFILL_TOKENS):
            self._prefill(prompts, [slots_of[prompt] for prompt in prompts])

    @torch.inference_mode()
    def _prefill(self, prompts: Sequence[PrefillPrompt], slots: Sequence[Sequence[int]]) -> None:
        # padded on the right; attention never sees padding
        input_ids_PT = np.zeros((len(prompts), max(map(len, prompts))), np.int64)
        for row, prompt in enumerate(prompts):
            input_ids_PT[row, : len(prompt)] = prompt.ids
        positions_PT = torch.arange(input_ids_PT.shape[1], device=self.device).expand(
            input_ids_PT.shape
        )
        self.cache.prefill(
            slots=self._tensor(np.concatenate([np.array(group) for group in slots])),
            prompts=self._tensor(
                np.repeat(np.arange(len(prompts)), [len(group) for group in slots])
            ),
        )
        pictures = [prompt.pictures for prompt in prompts]
        self._hidden(
            self._tensor(input_ids_PT),
            positions_PT,
            None,
            **seen_by_prompts(pictures, input_ids_PT, device=self.device),
        )

    def _continue(self) -> None:
        """Generate a token for every running row, and answer and remove rows that ended."""
        tokens_R, log_probs_R = self._next_tokens()
        rows = self.rows
        rows.append(tokens_R, log_probs_R, version=self.policy_version)
        self.counts.tokens += rows.count
        stopped_R = np.isin(tokens_R, self.stop_ids)
        for row in rows.with_stop:
            stopped_R[row] |= self._has_stop_string(row)
        ended = np.flatnonzero(stopped_R | (rows.counts[: rows.count] >= rows.limits[: rows.count]))
        if len(ended) == 0:
            return
        for row in ended:
            reason: FinishReason = "stop" if stopped_R[row] else "length"
            rows.pending[row].resolve(rows.response(row, reason))
        self._leave(ended)

    @torch.inference_mode()
    def _next_tokens(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        rows = self.rows
        count = rows.count
        longest = int(rows.positions[:count].max()) + 1
        positions_R = self._tensor(rows.positions[:count])
        rotary_R = self._tensor(rows.positions[:count] - rows.shifts[:count])
        # grows with the answers: few reach their limit
        self.cache.reserve(rows=count, length=longest)
        self.cache.decode(positions_R=positions_R, longest=longest)
        behind_RL = torch.arange(longest, device=self.device) > positions_R[:, None]
        bias_R11L = torch.zeros(behind_RL.shape, device=self.device).masked_fill_(
            behind_RL, -torch.inf
        )[:, None, None]
        with slot_attention(self.model.causal_lm):
            hidden_RD = self._hidden(
                self._tensor(rows.last_tokens[:count, None]), rotary_R[:, None], bias_R11L
            )[:, 0]
        logits_RV = self._logits(hidden_RD)
        log_probs_RV = torch.log_softmax(logits_RV / self.sampling.temperature, dim=-1)
        greedy_R = rows.greedy[:count]
        if greedy_R.all():
            tokens_R = log_probs_RV.argmax(-1)
        else:
            tokens_R = draw(
                log_probs_RV.exp(), self._tensor(rows.numbers()), sampling=self.sampling
            )
            if greedy_R.any():
                tokens_R = torch.where(self._tensor(greedy_R), log_probs_RV.argmax(-1), tokens_R)
        log_probs_R = log_probs_RV.gather(-1, tokens_R[:, None])[:, 0]
        return tokens_R.cpu().numpy(), log_probs_R.cpu().numpy()

    def _hidden(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        mask: torch.Tensor | None,
        **seen: SeenPictures,
    ) -> torch.Tensor:
        self.counts.forward_passes += 1
        OCCUPATION.record_progress()
        with self._precision():
            return self.model(input_ids, position_ids, mask, self.cache, **seen)

    def _logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Logits computed as in training (siirl.engine.actor.text_scorer).

        Operands have the compute dtype; sums are float32.
        """
        dtype = self.compute_dtype or hidden_RD.dtype
        bias_V = self.model.output_bias
        logits_RV = wide_product(hidden_RD.to(dtype), self.model.output_weight.to(dtype).T)
        return logits_RV if bias_V is None else logits_RV + bias_V.to(dtype)

    def _precision(self) -> contextlib.AbstractContextManager[None]:
        if self.compute_dtype is None:
            return contextlib.nullcontext()  # a disabled autocast costs as much as an enabled one
        return torch.autocast(self.device.type, self.compute_dtype, cache_enabled=False)

    def _leave(self, rows: NDArray[np.int64]) -> None:
        moves = self.rows.leave(rows)
        if len(moves.sources):
            with torch.inference_mode():
                self.cache.move(
                    sources=self._tensor(moves.sources), targets=self._tensor(moves.targets)
                )

    def _has_stop_string(self, row: int) -> bool:
        """Whether one of the row's stop strings ends in its newest token."""
        rows = self.rows
        stop = rows.pending[row].request.stop
        count = rows.counts[row]
        newest = rows.tokens[row, max(0, count - longest_in_tokens(stop)) : count]
        return says_stop(newest.tolist(), stop=stop, decode=self.tokenizer.decode)

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def portions(prompts: Iterable[PrefillPrompt], *, most_tokens: int) -> list[list[PrefillPrompt]]:
    """Group prompts of similar length, to save padding.

    A portion has at most `most_tokens` tokens, including padding, or a single prompt.
    """
    result: list[list[PrefillPrompt]] = []
    for prompt in sorted(prompts, key=len, reverse=True):
        if result and (len(result[-1]) + 1) * len(result[-1][0]) <= most_tokens:
            result[-1].append(prompt)
        else:
            result.append([prompt])
    return result
