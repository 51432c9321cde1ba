"""vLLM in a separate process (rollout.mode=async); the counterpart of `vllm_engine.VLLMEngine`."""

import asyncio
import concurrent.futures
import contextlib
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from siirl.engine.rollout.admission import PendingRequest, check_length
from siirl.engine.rollout.engine import summed
from siirl.engine.rollout.generation import FinishReason, GenerationRequest, GenerationResponse
from siirl.engine.rollout.vllm.vllm_engine import Continuation, VLLMBase, require_same_log_prob
from siirl.engine.rollout.vllm.vllm_probe import Probe
from siirl.engine.rollout.vllm.vllm_settings import start_errors
from siirl.engine.training.weight_buckets import CudaIpc, SharedMemory, WeightTransport, send
from siirl.errors import ConfigError, EngineDied
from siirl.execution.scheduler.private_session import PRIVATE_FOLDER
from siirl.files.socket_paths import socket_folder
from siirl.models.weight_rows import Rows

PREFIX = "siirl-sockets-"
LONGEST_SOCKET = f"{PREFIX}12345678/{uuid.UUID(int=0)}"
TASKS_END_S = 5.0  # limit for vLLM's cancelled tasks
# limit for vLLM's processes. They wait up to 9 s for each other; vLLM would kill them after 5, and
# their queues would stay in /dev/shm.
PROCESSES_END_S = 20.0
CHECK_S = 1.0  # a call that its process can no longer answer would wait forever
DIED = (
    "vLLM's process died: it was killed, perhaps because the machine ran out of memory, or by an "
    "error that its own lines name."
)


class AsyncVLLMEngine(VLLMBase):
    """vLLM in a separate process, driven by an event loop in a separate thread.

    The thread allows sending weights while the episodes' loop is not running.
    """

    verification: concurrent.futures.Future[None] | None = None
    """Compares the weights of the last exchange with training; None before the first."""
    dropped = False
    """Whether the verification before it was dropped."""

    def _start(self, settings: dict[str, Any]) -> None:
        if self.admission.lockstep:
            raise ConfigError(
                "rollout.mode=async batches requests as they arrive: with "
                "trainer.deterministic=true set rollout.mode=sync."
            )
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        if settings["enforce_eager"]:
            os.environ["TORCHDYNAMO_DISABLE"] = "1"  # as above; the separate process reads it
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.exceptions import EngineDeadError

        from siirl.engine.rollout.vllm.engine_process import in_own_group

        # vLLM leaves the sockets of its processes behind
        self.sockets = tempfile.TemporaryDirectory(
            prefix=PREFIX, dir=os.environ.get(PRIVATE_FOLDER) or socket_folder(LONGEST_SOCKET)
        )
        os.environ["VLLM_RPC_BASE_PATH"] = self.sockets.name
        self.dead_error = EngineDeadError
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="vllm", daemon=True)
        self.thread.start()

        async def start() -> Any:
            with in_own_group():
                return AsyncLLM.from_engine_args(AsyncEngineArgs(**settings))

        with start_errors(settings):
            self.vllm = asyncio.run_coroutine_threadsafe(start(), self.loop).result()
        if settings["tensor_parallel_size"] == 1:  # else its workers connect to each other later
            self._on_workers("siirl_shut_ports")
        self.longest = self.vllm.model_config.max_model_len

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        """See `TextEngine`."""
        check_length(request, longest=self.longest)
        self.counts.calls += 1
        pending = PendingRequest(request, asyncio.get_running_loop().create_future())
        answer = await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._generate(Continuation(pending)), self.loop)
        )
        self._check_verified()
        return answer

    async def _generate(self, continuation: Continuation) -> GenerationResponse:
        name = self._next_id()
        request = continuation.pending.request
        begin = time.perf_counter()
        if not self.running:
            self.busy_since = begin
        self.running[name] = continuation
        reason: FinishReason = "abort"
        try:
            async for output in self.vllm.generate(
                {"prompt_token_ids": list(request.input_ids)}, self._sampling_of(request), name
            ):
                (part,) = output.outputs
                continuation.extend(part, version=self.policy_version)
                reason = part.finish_reason or reason
        except self.dead_error as error:
            raise EngineDied(DIED) from error
        finally:
            del self.running[name]
            self.counts.tokens += len(continuation.tokens)
            if not self.running:
                self.counts.busy_s += time.perf_counter() - self.busy_since
        return continuation.response(reason)

    def take_memory(self) -> dict[str, float]:
        """See `TextEngine`; the peaks of vLLM's processes are added up."""
        return super().take_memory() | summed(self._on_workers("siirl_take_peaks"))

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        self._end_verification()
        self._wait(self.vllm.pause_generation(mode="keep", clear_cache=False))
        yield
        self._wait(self.vllm.resume_generation())

    def _verify(self, probe: Probe) -> None:
        """See `VLLMBase`, beside the requests: vLLM computes their keys and values first."""
        self.verification = asyncio.run_coroutine_threadsafe(self._compare(probe), self.loop)

    async def _compare(self, probe: Probe) -> None:
        output = await self._output(probe[0], self._scoring())
        require_same_log_prob(output, probe, dtype=self.dtype)

    def _end_verification(self) -> None:
        """Before new weights, which would score its text: drop a verification that still waits for
        room beside the requests, or await it if the one before was dropped.
        """
        verification, self.verification = self.verification, None
        if verification is None:
            return
        self.dropped = not self.dropped and not verification.done()
        if self.dropped:
            verification.cancel()
        else:
            self._result(verification)

    def _check_verified(self) -> None:
        """Raise the error of the last verification, if it has ended with one."""
        if self.verification is not None and self.verification.done():
            self.verification.result()

    def interrupt(self) -> None:
        """See `TextEngine`."""
        self._wait(self._abort())

    async def _abort(self) -> None:
        await self.vllm.abort(list(self.running))

    def close(self) -> None:
        """See `TextEngine`; safe to call twice."""
        if not self.loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._shut_down(), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()
            self.vllm = None  # at the exit of Python its finaliser would fail
            self.sockets.cleanup()

    async def _shut_down(self) -> None:
        """Stop vLLM, and let its tasks end, which asyncio otherwise reports as destroyed."""
        self.vllm.shutdown(timeout=PROCESSES_END_S)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=TASKS_END_S)

    def _wait(self, work: Any) -> Any:
        return self._result(asyncio.run_coroutine_threadsafe(work, self.loop))

    def _result(self, answer: concurrent.futures.Future[Any]) -> Any:
        while not answer.done():
            concurrent.futures.wait([answer], timeout=CHECK_S)
            if self.vllm.errored and not answer.done():
                answer.cancel()
                raise EngineDied(DIED)
        try:
            return answer.result()
        except self.dead_error as error:
            raise EngineDied(DIED) from error

    def _transfer(self, weights: Iterable[Rows]) -> int:
        def call(handle: Any, entries: list[Any]) -> None:
            self._on_workers("siirl_take_bucket", handle, entries)

        transport: WeightTransport = (
            SharedMemory(call) if self.device.type == "cpu" else CudaIpc(call, self.device)
        )
        return send(weights, transport, bucket_bytes=self.bucket_bytes)

    def _complete(self, ids: list[int], sampling: Any) -> Any:
        return self._wait(self._output(ids, sampling))

    async def _output(self, ids: list[int], sampling: Any) -> Any:
        output = None
        try:
            async for output in self.vllm.generate(
                {"prompt_token_ids": ids}, sampling, self._next_id()
            ):
                pass
        except self.dead_error as error:
            raise EngineDied(DIED) from error
        return output
