"""Text engines over vLLM: paged keys and values, prefix caching, several GPUs, separate weights.

`VLLMEngine` runs vLLM in this process, on the event loop of the episodes. `AsyncVLLMEngine`
(`async_vllm_engine`, rollout.mode=async) runs it in a separate process, which generates while this
process does other work. Both get the weights of the trained module in memory: the first tensor by
tensor, the second in buckets that both processes map. On a GPU vLLM sleeps between rollouts, so
that training can use the memory of its weights, keys and values; vLLM's CPU build does not support
that. Log-probs are those of the whole distribution under the temperature, as in training: vLLM's
own temperature stays 1, and the logits are divided beforehand
(`siirl.engine.rollout.vllm.vllm_worker`).

vLLM is an extra (`make vllm`), imported only when an engine is made.
"""

import abc
import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from siirl.engine.rollout.admission import EMPTY_RESPONSE, PendingRequest
from siirl.engine.rollout.generation import FinishReason, GenerationRequest, GenerationResponse
from siirl.engine.rollout.text_engine_base import InProcessTextEngine, TextEngineBase
from siirl.engine.rollout.vllm.vllm_probe import (
    Probe,
    has_weights,
    loadable,
    trained_probe,
    weight_dtypes,
)
from siirl.engine.rollout.vllm.vllm_settings import (
    PROBE_TOLERANCE,
    engine_settings,
    process_state_restored,
    start_errors,
)
from siirl.engine.training.network import on_loopback
from siirl.engine.training.port_guard import guard_new_ports
from siirl.engine.training.weight_buckets import require_peer_access
from siirl.engine.training.weight_sync import ChecksumPair
from siirl.errors import ConfigError, InvariantError
from siirl.models.adapters import adapters_first
from siirl.models.chat import ChatTokenizer
from siirl.models.checksum import RunningChecksum
from siirl.models.language_model import LanguageModel
from siirl.models.weight_rows import Rows, in_rows
from siirl.occupation import OCCUPATION
from siirl.params.packages import require_vllm
from siirl.params.rollout_args import RolloutArguments
from siirl.params.sizes import GIB

MEGABYTE = 1 << 20
SLEEP_LEVEL = 1  # weights go to the host; level 2 would drop them


class Continuation:
    """A request in vLLM, and its tokens so far."""

    def __init__(self, pending: PendingRequest) -> None:
        self.pending = pending
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []

    def extend(self, output: Any, *, version: int) -> None:
        """Append the newest tokens of a CompletionOutput of kind DELTA."""
        self.tokens += output.token_ids
        self.log_probs += [
            entry[token].logprob
            for token, entry in zip(output.token_ids, output.logprobs or [], strict=True)
        ]
        self.versions += [version] * len(output.token_ids)

    def response(self, reason: FinishReason) -> GenerationResponse:
        """The tokens so far."""
        return GenerationResponse(
            tokens=np.array(self.tokens, np.int64),
            log_probs=np.array(self.log_probs, np.float32),
            versions=np.array(self.versions, np.int64),
            finish_reason=reason,
        )


class VLLMBase(TextEngineBase, abc.ABC):
    """Base of both engines: starts vLLM, translates requests, loads weights.

    Args:
        model: The trained module. vLLM starts with its current weights. If it has none yet (on the
            meta device) or holds a shard, the first `take_weights` provides them.
        tokenizer: Provides the tokens that end a turn.
        temperature: Divides the logits, for sampling and for the log-probs.
        top_p: Draw from the smallest set of tokens with this probability; log-probs remain those of
            the whole distribution.
        top_k: Draw from this many most likely tokens; None: from all.
        max_running: Largest number of requests in one forward pass; others wait.
        lockstep: Deterministic mode; see `Admission`.
        compute_dtype: Type of vLLM's weights and passes; None: the module's type.
        kv_cache_gib: Memory for keys and values.
        num_gpus: GPUs of one engine (tensor parallelism).
        longest_text: Tokens of the longest prompt and its continuation together; None: the model's
            length, as far as the memory allows.
        sleeps: Free vLLM's GPU memory while no rollout runs; not read on a CPU.
        exchanges: Get new weights by `replace_weights`, perhaps while requests are running.
        bucket_bytes: Size of a bucket of weights.
        device: Device on which vLLM computes; None: the device of the weights.

    Raises:
        ConfigError: vLLM is not installed, or some of the GPUs cannot read the first one's memory.
        RunFailed: vLLM does not start.
    """

    vllm: Any
    """The engine of vLLM, made by `_start`."""

    def __init__(
        self,
        *,
        model: LanguageModel,
        tokenizer: ChatTokenizer,
        temperature: float,
        max_running: int,
        lockstep: bool,
        top_p: float = 1.0,
        top_k: int | None = None,
        compute_dtype: torch.dtype | None = None,
        kv_cache_gib: float = RolloutArguments.kv_cache_gib,
        num_gpus: int = RolloutArguments.tensor_model_parallel_size,
        longest_text: int | None = None,
        sleeps: bool = RolloutArguments.sleep,
        exchanges: bool = False,
        bucket_bytes: int = RolloutArguments.update_weights_bucket_megabytes * MEGABYTE,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(lockstep=lockstep)
        require_vllm()
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.top_p = top_p
        self.top_k = top_k
        weight = next(model.parameters())
        self.longest = model.max_length
        self.dtype = compute_dtype or weight.dtype
        self.device = weight.device if device is None else device
        if self.device.type == "cuda":
            require_peer_access(self.device, num_gpus=num_gpus)
        self.bucket_bytes = bucket_bytes
        self.cache_bytes = kv_cache_gib * GIB * num_gpus
        self.sleeps = sleeps and self.device.type != "cpu"
        self.asleep = False
        self.running: dict[str, Continuation] = {}
        self.requests = 0
        settings = engine_settings(
            dtype=self.dtype,
            model_length=self.longest,
            longest_text=longest_text,
            max_running=max_running,
            kv_cache_gib=kv_cache_gib,
            num_gpus=num_gpus,
            on_cpu=self.device.type == "cpu",
            sleeps=self.sleeps,
            exchanges=exchanges,
        )
        with (
            tempfile.TemporaryDirectory(prefix="siirl-vllm-") as folder,
            process_state_restored(),
            on_loopback(),
        ):
            model.describe(folder)
            tokenizer.save(folder)
            self._start({"model": folder, "tokenizer": folder, **settings})
        self._on_workers("siirl_scale_logits", 1.0 / temperature)
        if has_weights(model):
            self.take_weights(in_rows(adapters_first(model.state_dict())))

    # ActingWeights

    @property
    def weight_dtypes(self) -> dict[str, torch.dtype]:
        """See `ActingWeights`."""
        return weight_dtypes(self.model, self.dtype)

    def has_weights(self) -> bool:
        """See `ActingWeights`: vLLM lives and ends with this rank, and asleep keeps its weights."""
        return True

    def take_weights(self, weights: Iterable[Rows]) -> list[ChecksumPair]:
        """Replace vLLM's weights; returns checksums of its workers and the log-probs of a probe.

        Cached prefixes of the old weights are dropped. No request may be running. See
        `ActingWeights`.

        Raises:
            InvariantError: A request is running, so that the cached prefixes stay.
        """
        self.wake()
        pairs = self._load(weights)
        if not self._wait(self.vllm.reset_prefix_cache()):
            raise InvariantError(
                "vLLM kept keys and values of the old weights, because a request was still running "
                "when new weights arrived: a workflow must await every answer before its episode "
                "ends."
            )
        return [*pairs, self._probe()]

    def _probe(self) -> ChecksumPair:
        """Mean log-prob of a fixed text, by the trained module and by vLLM.

        A sharded module runs on all ranks; all of them take weights at the same time.
        """
        probe = trained_probe(
            self.model,
            vocab_size=self.tokenizer.vocab_size,
            longest=self.longest,
            temperature=self.temperature,
            compute_dtype=self.dtype,
            device=self.device,
        )
        return pair_of(self._complete(probe[0], self._scoring()), probe, dtype=self.dtype)

    def replace_weights(
        self, weights: Iterable[Rows], *, version: int, probe: Probe | None = None
    ) -> None:
        """Act with other weights, of which this process has no copy: requests that are running
        continue with them, and vLLM computes their keys and values anew. Call it between two steps.

        See `siirl.dag_worker.separate.received_weights`.
        """
        here = (
            part.with_values(part.values.to(self.device))  # where adapters are merged
            for rows in weights
            for part in rows.cut(self.bucket_bytes)
        )
        with self._paused():
            for pair in self._load(here):
                _require_agreement(pair, "weights with the checksum")
            self._wait(self.vllm.reset_prefix_cache(reset_running_requests=True))
            self.update_weights(version)
        if probe is not None:
            self._verify(probe)

    def _verify(self, probe: Probe) -> None:
        """Compare vLLM's log-prob of a text with that of the trained module."""
        require_same_log_prob(self._complete(probe[0], self._scoring()), probe, dtype=self.dtype)

    def _load(self, weights: Iterable[Rows]) -> list[ChecksumPair]:
        """Bring all weights to the workers; returns checksums of what was sent and what arrived."""
        self._on_workers("siirl_begin_weights")
        expected = self._transfer(loadable(self.model, weights, self.dtype))
        found = self._on_workers("siirl_finish_weights")
        if self.device.type == "cuda":
            torch.cuda.ipc_collect()  # the last bucket, which the workers have now closed
        return [ChecksumPair(trained=expected, acting=number) for number in found]

    def _paused(self) -> contextlib.AbstractContextManager[Any]:
        """No step begins in this context, and none is under way."""
        return contextlib.nullcontext()

    def _on_workers(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of the worker extension on every worker."""
        found: list[Any] = self._wait(self.vllm.collective_rpc(method, args=arguments))
        return found

    def take_memory(self) -> dict[str, float]:
        """See `TextEngine`: vLLM allocates its cache at once."""
        return {"keys_values": self.cache_bytes}

    # Sleep

    def expect(self, *, episodes: int, at_once: int) -> None:
        """See `TextEngine`; a sleeping vLLM wakes."""
        self.wake()
        super().expect(episodes=episodes, at_once=at_once)

    def rest(self) -> None:
        """See `TextEngine`: free the memory of keys and values, and move the weights to the host.

        They stay there, because a step may have several rollouts with the same weights.
        """
        if self.sleeps and not self.asleep:
            self._wait(self.vllm.sleep(level=SLEEP_LEVEL))
            self.asleep = True

    def wake(self) -> None:
        """Allocate the memory again; keys and values are empty."""
        if self.asleep:
            # PyTorch's allocator keeps what an update has freed, and vLLM cannot take it from there
            torch.cuda.empty_cache()
            self._wait(self.vllm.wake_up())
            self.asleep = False

    # Translation of requests

    def _sampling(self, **options: Any) -> Any:
        from vllm import SamplingParams

        settings = {"temperature": 1.0, "logprobs": 0, "ignore_eos": True, "detokenize": False}
        return SamplingParams(**settings | options)

    def _scoring(self) -> Any:
        """To get the log-probs of a prompt."""
        return self._sampling(max_tokens=1, prompt_logprobs=0)

    def _sampling_of(self, request: GenerationRequest) -> Any:
        from vllm.sampling_params import RequestOutputKind

        drawing = (
            {"temperature": 0.0}
            if request.greedy
            else {"top_p": self.top_p, "top_k": self.top_k or 0}
        )
        return self._sampling(
            **drawing,
            seed=int(np.random.SeedSequence(request.seed).generate_state(1)[0]),
            max_tokens=request.max_new_tokens,
            stop=list(request.stop),
            stop_token_ids=sorted(self.tokenizer.stop_ids),
            detokenize=bool(request.stop),
            output_kind=RequestOutputKind.DELTA,
        )

    def _next_id(self) -> str:
        self.requests += 1
        return str(self.requests)  # not the uid: an episode sends several requests

    # Implemented by the two engines

    @abc.abstractmethod
    def _start(self, settings: dict[str, Any]) -> None:
        """Start vLLM with these arguments of its engine."""

    @abc.abstractmethod
    def _wait(self, work: Any) -> Any:
        """The result of a call of vLLM, which is a coroutine if vLLM is asynchronous."""

    @abc.abstractmethod
    def _transfer(self, weights: Iterable[Rows]) -> int:
        """Bring all weights to the workers; returns their checksum in this order."""

    @abc.abstractmethod
    def _complete(self, ids: list[int], sampling: Any) -> Any:
        """Run one request alone; returns its final output."""


def pair_of(output: Any, probe: Probe, *, dtype: torch.dtype) -> ChecksumPair:
    """Mean log-probs of a text by the trained module and by vLLM, whose `output` has those of its
    prompt.
    """
    ids, expected = probe
    found = np.mean(
        [
            entry[token].logprob
            for token, entry in zip(ids[1:], output.prompt_logprobs[1:], strict=True)
        ]
    )
    return ChecksumPair(trained=expected, acting=float(found), tolerance=PROBE_TOLERANCE[dtype])


def require_same_log_prob(output: Any, probe: Probe, *, dtype: torch.dtype) -> None:
    """Raise InvariantError unless the two of `pair_of` agree."""
    _require_agreement(pair_of(output, probe, dtype=dtype), "weights that give a text the log-prob")


def _require_agreement(pair: ChecksumPair, what: str) -> None:
    if not pair.agrees:
        raise InvariantError(
            f"vLLM acts with {what} {pair.acting}, where training has {pair.trained}. Report this "
            "with the run's config; the last checkpoint is intact."
        )


class VLLMEngine(InProcessTextEngine, VLLMBase):
    """vLLM in this process; other tasks of the event loop run between two of its steps."""

    def _start(self, settings: dict[str, Any]) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise ConfigError(
                "vLLM in the process of one of several ranks would share their process group: "
                "set rollout.mode=async."
            )
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import EngineArgs, LLMEngine

        if settings["enforce_eager"]:
            # otherwise parts of its sampler are still compiled, for ten seconds each
            torch.compiler.set_stance("force_eager")
        with start_errors(settings), guard_new_ports():
            self.vllm = LLMEngine.from_engine_args(
                EngineArgs(**settings, distributed_executor_backend="uni")
            )
        self.longest = self.vllm.model_config.max_model_len

    def interrupt(self) -> None:
        """See `TextEngine`."""
        for continuation in self.running.values():
            continuation.pending.resolve(continuation.response("abort"))
        for pending in self.admission.waiting:
            pending.resolve(EMPTY_RESPONSE)
        self._clear()

    def close(self) -> None:
        """See `TextEngine`; pending requests are cancelled."""
        super().close()
        self.vllm.engine_core.shutdown()

    def _all_pending(self) -> list[PendingRequest]:
        return [
            *(continuation.pending for continuation in self.running.values()),
            *self.admission.waiting,
        ]

    def _clear(self) -> None:
        self.vllm.abort_request(list(self.running))
        self.running = {}
        self.admission.waiting = []

    def _step(self) -> bool:
        begun = {
            self._next_id(): Continuation(pending)
            for pending in self.admission.admit(idle=not self.running)
        }
        self.running |= begun
        for name, continuation in begun.items():
            request = continuation.pending.request
            self.vllm.add_request(
                name, {"prompt_token_ids": list(request.input_ids)}, self._sampling_of(request)
            )
        for output in self.vllm.step() if self.running else []:
            self._take(output)
        self.counts.forward_passes += 1
        OCCUPATION.record_progress()
        return bool(self.running)

    def _take(self, output: Any) -> None:
        continuation = self.running.get(output.request_id)
        if continuation is None:
            return  # aborted before this output arrived
        (part,) = output.outputs
        continuation.extend(part, version=self.policy_version)
        self.counts.tokens += len(part.token_ids)
        if output.finished:
            del self.running[output.request_id]
            continuation.pending.resolve(continuation.response(part.finish_reason))

    def _withdraw(self, pending: PendingRequest) -> None:
        if pending in self.admission.waiting:
            self.admission.waiting.remove(pending)
        for name, continuation in list(self.running.items()):
            if continuation.pending is pending:
                self.vllm.abort_request([name])
                del self.running[name]

    def _wait(self, work: Any) -> Any:
        return work

    def _transfer(self, weights: Iterable[Rows]) -> int:
        digest = RunningChecksum()

        def counted() -> Iterator[Rows]:
            for rows in weights:
                digest.add(rows)
                yield rows

        self._on_workers("siirl_take_weights", counted())  # the worker is in this process
        return digest.value

    def _complete(self, ids: list[int], sampling: Any) -> Any:
        self.vllm.add_request(self._next_id(), {"prompt_token_ids": ids}, sampling)
        while True:
            for output in self.vllm.step():
                if output.finished:
                    return output
