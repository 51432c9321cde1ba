"""The engine of language models that needs nothing but the model: by default the very module that
is trained, with continuous batching.

Every pass continues all running requests by one token. Finished ones leave at once and waiting ones
join: their prompts go through the model in one pass, each different prompt once, all but its last
token; that one is fed to the next pass beside the others' newest tokens, so there is one place
where tokens are drawn.

Between two passes the event loop gets its turn: environments answer while others are still being
continued. The pass itself is synchronous. Left out: keeping the keys and values of an episode
between its turns, and several GPUs for one model; vLLM has both.
"""

# R running row, P prompt, T token of a prompt, D hidden, V token of the vocabulary

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.algos.products import wide_product
from siirl.engine.rollout.admission import NOTHING, Job
from siirl.engine.rollout.generation import FinishReason
from siirl.engine.rollout.hf.key_value_cache import SlotCache, slot_attention
from siirl.engine.rollout.hf.running_rows import RunningRows
from siirl.engine.rollout.sampling import Sampling, draw
from siirl.engine.rollout.stop_strings import longest_in_tokens, says_stop
from siirl.engine.rollout.turn_taking import TurnTaking
from siirl.models.chat import ChatTokenizer
from siirl.models.language_model import LanguageModel
from siirl.occupation import OCCUPATION

# A prefill costs about a pass of decoding, whatever its size: joining one by one would halve the
# speed. So joiners wait until they are this share of the running rows, or until they have waited
# for this many passes.
FEWEST_JOINERS_SHARE = 1 / 8
LONGEST_WAIT_PASSES = 16
# Tokens of one prefill pass, padding included. Its memory is that of hidden states: 8192 tokens of
# a 7B model take under 1 GB.
MOST_PREFILL_TOKENS = 8192


class HFEngine(TurnTaking):
    """Continues many prompts at once with a transformers decoder.

    Args:
        model: The module that answers.
        tokenizer: Knows the tokens that end a turn, and the text of stop strings.
        temperature: Divides the logits, for sampling and for the log-probs alike; 1 is the model as
            it is.
        top_p: Draw from the smallest set of tokens with this probability; log-probs stay those of
            the whole distribution.
        top_k: Draw from this many most likely tokens; None: from all.
        max_running: Most requests in one forward pass; others wait. As many episodes as
            `InferenceEngine` runs at once by default.
        lockstep: Deterministic mode: requests are taken up only when every episode that can be
            running is waiting, in the order of their uids, and the next only when all of these are
            answered. Which rows a pass has then depends on no clock, and so do its floating-point
            results.
        compute_dtype: Type of the forward pass, the same as in training; None is the weights' own.
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
        self.model, self.tokenizer, self.longest = model, tokenizer, model.max_length
        self.device = next(model.parameters()).device
        self.sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
        self.max_running, self.compute_dtype = max_running, compute_dtype
        self.joining: deque[Job] = deque()
        self.passes_waited = 0
        self.rows, self.cache = RunningRows(), SlotCache()
        self.stop_ids = np.array(sorted(tokenizer.stop_ids), np.int64)

    # What episodes and stages call

    def interrupt(self) -> None:
        """See `TextEngine`; requests that have not begun are answered too, without a token."""
        for row, job in enumerate(self.rows.jobs):
            job.resolve(self.rows.response(row, "abort"))
        for job in (*self.admission.waiting, *self.joining):
            job.resolve(NOTHING)
        self._clear()

    # Scheduling

    def _turn(self) -> bool:
        """Let requests join, continue all running ones by one token, and answer those that have
        ended.
        """
        self.joining += self.admission.take_up(idle=not self.rows.count and not self.joining)
        if self._should_join():
            self._join()
        if self.rows.count:
            self._continue()
        if not self._jobs():
            self.cache.release()
        return bool(self.rows.count or self.joining)

    def _should_join(self) -> bool:
        possible = min(len(self.joining), self.max_running - self.rows.count)
        if possible == 0:
            return False
        enough = possible >= self.rows.count * FEWEST_JOINERS_SHARE
        self.passes_waited = 0 if enough else self.passes_waited + 1
        return enough or self.passes_waited >= LONGEST_WAIT_PASSES

    def _forget(self, job: Job) -> None:
        if job in self.admission.waiting:
            self.admission.waiting.remove(job)
        elif job in self.joining:
            self.joining.remove(job)
        elif job in self.rows.jobs:
            self._leave(np.array([self.rows.jobs.index(job)]))

    def _jobs(self) -> list[Job]:
        return [*self.rows.jobs, *self.joining, *self.admission.waiting]

    def _clear(self) -> None:
        self.rows, self.cache = RunningRows(), SlotCache()
        self.admission.waiting, self.joining = [], deque()

    # Forward passes

    def _join(self) -> None:
        """Give as many as there is room for a row, and compute the keys and values of their
        prompts.
        """
        self.passes_waited = 0
        first = self.rows.count
        joiners = [
            self.joining.popleft() for _ in range(min(len(self.joining), self.max_running - first))
        ]
        self.rows.join(joiners)
        self.cache.reserve(
            rows=self.rows.count, length=max(len(job.request.input_ids) for job in joiners)
        )
        slots_of: dict[tuple[int, ...], list[int]] = {}
        for slot, job in enumerate(joiners, start=first):
            slots_of.setdefault(job.request.input_ids[:-1], []).append(slot)
        slots_of.pop((), None)  # prompts of one token, which is fed by the next pass
        for prompts in portions(slots_of, most_tokens=MOST_PREFILL_TOKENS):
            self._prefill(prompts, [slots_of[prompt] for prompt in prompts])

    @torch.inference_mode()
    def _prefill(self, prompts: Sequence[tuple[int, ...]], slots: Sequence[Sequence[int]]) -> None:
        input_ids_PT = np.zeros(
            (len(prompts), max(map(len, prompts))), np.int64
        )  # padded on the right, where nobody looks
        for row, prompt in enumerate(prompts):
            input_ids_PT[row, : len(prompt)] = prompt
        positions_PT = torch.arange(input_ids_PT.shape[1], device=self.device).expand(
            input_ids_PT.shape
        )
        self.cache.prefill(
            slots=self._tensor(np.concatenate([np.array(group) for group in slots])),
            prompts=self._tensor(
                np.repeat(np.arange(len(prompts)), [len(group) for group in slots])
            ),
        )
        self._hidden(self._tensor(input_ids_PT), positions_PT, None)

    def _continue(self) -> None:
        """One more token for every running row; rows that have ended leave."""
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
            rows.jobs[row].resolve(rows.response(row, reason))
        self._leave(ended)

    @torch.inference_mode()
    def _next_tokens(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        rows, count = self.rows, self.rows.count
        longest = int(rows.positions[:count].max()) + 1
        positions_R = self._tensor(rows.positions[:count])
        self.cache.reserve(
            rows=count, length=longest
        )  # as answers get longer: few are as long as they may be
        self.cache.decode(positions_R=positions_R, longest=longest)
        behind_RL = torch.arange(longest, device=self.device) > positions_R[:, None]
        bias_R11L = torch.zeros(behind_RL.shape, device=self.device).masked_fill_(
            behind_RL, -torch.inf
        )[:, None, None]
        with slot_attention(self.model.causal_lm):
            hidden_RD = self._hidden(
                self._tensor(rows.last_tokens[:count, None]), positions_R[:, None], bias_R11L
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
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        self.counts.forward_passes += 1
        OCCUPATION.got_on()
        with self._precision():
            return self.model.causal_lm.base_model(
                input_ids=input_ids,
                position_ids=position_ids,
                attention_mask=mask,
                past_key_values=self.cache,
                use_cache=True,
            ).last_hidden_state

    def _logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """As training makes them (siirl.engine.actor.text_scorer): operands in the type of the
        passes, sums in float32.
        """
        dtype, bias_V = self.compute_dtype or hidden_RD.dtype, self.model.output_bias
        logits_RV = wide_product(hidden_RD.to(dtype), self.model.output_weight.to(dtype).T)
        return logits_RV if bias_V is None else logits_RV + bias_V.to(dtype)

    def _precision(self) -> contextlib.AbstractContextManager[None]:
        if self.compute_dtype is None:
            return (
                contextlib.nullcontext()
            )  # an autocast that is not enabled costs as much as one that is
        return torch.autocast(self.device.type, self.compute_dtype)

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
        stop = rows.jobs[row].request.stop
        newest = rows.tokens[
            row, max(0, rows.counts[row] - longest_in_tokens(stop)) : rows.counts[row]
        ]
        return says_stop(newest.tolist(), stop=stop, decode=self.tokenizer.decode)

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def portions(
    prompts: Iterable[tuple[int, ...]], *, most_tokens: int
) -> list[list[tuple[int, ...]]]:
    """Prompts of similar length together, so that little is padding, at most `most_tokens` a
    portion or a single prompt.
    """
    result: list[list[tuple[int, ...]]] = []
    for prompt in sorted(prompts, key=len, reverse=True):
        if result and (len(result[-1]) + 1) * len(result[-1][0]) <= most_tokens:
            result[-1].append(prompt)
        else:
            result.append([prompt])
    return result
