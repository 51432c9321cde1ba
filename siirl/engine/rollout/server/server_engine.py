"""Text engine over an inference server: vLLM's OpenAI-compatible server, or one with the same
routes.

The server holds a copy of the weights, on this machine or another, and batches requests as they
arrive. New weights reach it in buckets (`weight_folder`, `weight_group`). Three checks verify them:
a checksum over the bits that arrived, the log-probs of a fixed text, and a label. Workers lose the
label when they restart; the engine compares it before and after each rollout. A fourth check, once
in a run, is that seeds determine the answers (`seed_check`).

If a request gets no usable answer, its episode counts as failed and is never scored. If the server
no longer answers, the other episodes of the rollout fail at once. If it did not accept the weights,
all episodes fail. In both cases all ranks end together, with a checkpoint. Left out: several
servers for one rank, sleeping between rollouts, separate rollout ranks (`dag.groups`).
"""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from envs.text import shortened
from siirl.engine.rollout.admission import check_length
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.engine.rollout.server.completions import (
    COMPLETIONS,
    BadAnswer,
    completion,
    completion_body,
    largest_answer,
    scored_log_probs,
    scoring_body,
)
from siirl.engine.rollout.server.handshake import call_workers, shake_hands, worker_description
from siirl.engine.rollout.server.seed_check import check_seeds
from siirl.engine.rollout.server.server_link import ServerError, ServerLink
from siirl.engine.rollout.text_engine_base import TextEngineBase
from siirl.engine.rollout.vllm.vllm_probe import has_weights, loadable, trained_probe, weight_dtypes
from siirl.engine.rollout.vllm.vllm_settings import PROBE_TOLERANCE
from siirl.engine.training.weight_buckets import BUCKET_BYTES, WeightTransport, send
from siirl.engine.training.weight_sync import ChecksumPair
from siirl.errors import InvariantError, RunFailed, SimulationFailed
from siirl.models.adapters import adapters_first
from siirl.models.chat import ChatTokenizer
from siirl.models.language_model import LanguageModel
from siirl.models.weight_rows import Rows, in_rows
from siirl.occupation import OCCUPATION

Result = TypeVar("Result")


RESTART_S = 120.0  # about as long as vLLM takes to start with a 7B model


class WeightRoute(Protocol):
    """A way to send weights to a server."""

    def open(self, link: ServerLink) -> AbstractContextManager[WeightTransport]:
        """The transport of one sync.

        Raises:
            RunFailed: It cannot be opened, or the server does not take a bucket.
        """

    def close(self) -> None:
        """Free what it holds; safe to call twice."""


class ServerEngine(TextEngineBase):
    """Continues prompts by requests to one inference server.

    Args:
        model: The trained module; see `VLLMBase`.
        tokenizer: Provides the tokens that end a turn.
        link: The connections to the server; `close` closes them, as does a failed construction.
        route: Sends the weights; closed with `link`.
        temperature: Divides the logits, for sampling and for the log-probs.
        top_p: Draw from the smallest set of tokens with this probability.
        top_k: Draw from this many most likely tokens; None: from all.
        compute_dtype: Type of the server's weights; None: the module's type.
        longest_text: Tokens of the longest prompt and its continuation together; None: unknown.
        bucket_bytes: Size of a bucket of weights.
        device: Device of the trained module; None: the device of its weights.
        restart_s: Seconds of attempts to reach the server before a sync.

    Raises:
        RunFailed: The server does not answer, lacks a route or siirl's extension, computes in
            another type, ignores seeds, or refuses the weights.
    """

    def __init__(
        self,
        *,
        model: LanguageModel,
        tokenizer: ChatTokenizer,
        link: ServerLink,
        temperature: float,
        route: WeightRoute,
        top_p: float = 1.0,
        top_k: int | None = None,
        compute_dtype: torch.dtype | None = None,
        longest_text: int | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        device: torch.device | None = None,
        restart_s: float = RESTART_S,
    ) -> None:
        super().__init__(lockstep=False)
        self.model = model
        self.tokenizer = tokenizer
        self.link = link
        self.route, self.bucket_bytes = route, bucket_bytes
        self.restart_s = restart_s
        self.temperature = temperature
        self.top_p = top_p
        self.top_k = top_k
        weight = next(model.parameters())
        self.dtype = compute_dtype or weight.dtype
        self.device = weight.device if device is None else device
        self.running: set[str] = set()
        self.requests = 0
        # Calls that end the server's running requests: a request's answer may be cut by one that
        # had not ended when the request began.
        self.interruptions_begun = self.interruptions_ended = 0
        self.label = ""
        self.gone = ""
        """Reason why this rollout no longer uses the server; empty: it is used."""
        self.refusal = ""
        """Reason why the server did not accept the last weights; empty: it did."""
        self.draws_by_seed = False
        """Whether `check_seeds` has passed."""
        self.answered_at = 0.0
        self._verification: asyncio.Task[None] | None = None
        self._ids = secrets.token_hex(8)  # distinguishes this run's requests and weights
        try:
            self._introduce(longest_text)
        except BaseException:
            self.close()
            raise

    def _introduce(self, longest_text: int | None) -> None:
        """Ask the server what it serves, and send it the weights."""
        dtype = str(self.dtype).removeprefix("torch.")
        served = self._wait(shake_hands(self.link, dtype=dtype, longest_text=longest_text))
        self.served_model, self.longest = served.name, served.longest
        if has_weights(self.model):
            self.take_weights(in_rows(adapters_first(self.model.state_dict())))
        if self.refusal:
            raise RunFailed(self.refusal)

    # TextEngine

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        """See `TextEngine`.

        Raises:
            SimulationFailed: The server gave no usable answer.
        """
        check_length(request, longest=self.longest)
        self.counts.calls += 1
        try:
            return await asyncio.wrap_future(self.link.start(self._generate(request)))
        except ServerError as error:
            raise SimulationFailed(str(error)) from error

    async def _generate(self, request: GenerationRequest) -> GenerationResponse:
        await self._verify()
        begin = time.perf_counter()
        if not self.running:
            self.busy_since = begin
        self.requests += 1
        name = f"{self._ids}-{self.requests}"
        self.running.add(name)
        version = self.policy_version
        try:
            response = await self._answer(request, name=name, version=version)
        except ServerError as error:
            if error.gone and self.answered_at < begin:
                self.gone = str(error)
            raise
        finally:
            self.running.remove(name)
            if not self.running:
                self.counts.busy_s += time.perf_counter() - self.busy_since
        self.answered_at = time.perf_counter()
        OCCUPATION.record_progress()
        self.counts.tokens += len(response.tokens)
        return response

    async def _answer(
        self, request: GenerationRequest, *, name: str, version: int
    ) -> GenerationResponse:
        body = completion_body(
            request,
            model=self.served_model,
            name=name,
            top_p=self.top_p,
            top_k=self.top_k,
            stop_ids=sorted(self.tokenizer.stop_ids),
        )
        most = largest_answer(len(request.input_ids) + request.max_new_tokens)
        past_interruptions = self.interruptions_ended
        content = await self.link.content("POST", COMPLETIONS, body=body, most_bytes=most)
        try:
            return completion(
                content,
                request=request,
                vocab_size=self.tokenizer.vocab_size,
                version=version,
                stop_ids=self.tokenizer.stop_ids,
                decode=self.tokenizer.decode,
                interrupted=self.interruptions_begun > past_interruptions,
            )
        except BadAnswer as error:
            raise self.link.unusable(error) from error

    def interrupt(self) -> None:
        """See `TextEngine`."""
        self._wait(self._abort())

    async def _abort(self) -> None:
        if self.running:  # `cmpl-NAME-0` is vLLM's id of the first prompt of a request
            names = [f"cmpl-{name}-0" for name in sorted(self.running)]
            await self._interrupting(self.link.post("/abort_requests", {"request_ids": names}))

    async def _interrupting(self, call: Coroutine[Any, Any, Any]) -> None:
        """Make a call that ends the server's running requests."""
        self.interruptions_begun += 1
        try:
            await call
        finally:
            self.interruptions_ended += 1

    def rest(self) -> None:
        """End a rollout. The next sync detects a server that stopped after its last answer.

        Raises:
            InvariantError: The server no longer has this run's weights, so some texts may be
                another policy's.
        """
        with contextlib.suppress(ServerError):
            if not (self.gone or self.refusal or self.link.wait(self._has_own_weights())):
                raise InvariantError(f"{self._lost()} This rollout was not trained on.")
        self.gone = ""
        self._verification = None

    def close(self) -> None:
        """See `TextEngine`; the server keeps running."""
        self.link.close()
        self.route.close()

    # Weights

    @property
    def weight_dtypes(self) -> dict[str, torch.dtype]:
        """See `ActingWeights`."""
        return weight_dtypes(self.model, self.dtype)

    def has_weights(self) -> bool:
        """See `ActingWeights`: whether the server answers, and has this run's label."""
        if self.gone or self.refusal:
            return False
        try:
            return self.link.wait(self._has_own_weights())
        except ServerError:
            return False

    def take_weights(self, weights: Iterable[Rows]) -> list[ChecksumPair] | None:
        """Replace the server's weights.

        Returns:
            The checksum of its workers and the log-prob of a probe. None if the server did not
            take them: the episodes of the next rollout then fail with the reason.
        """
        self._verification, self.refusal = None, ""
        # a chain has no close(), so a failed send leaves the rest to the loop below: all ranks must
        # gather it
        remaining = itertools.chain(weights)
        pairs: list[ChecksumPair] = []
        try:
            pairs = self._send(remaining)
        except RunFailed as error:
            self.refusal = str(error)
            for _ in remaining:
                pass
        ids, expected = trained_probe(  # on all ranks, if the module is sharded
            self.model,
            vocab_size=self.tokenizer.vocab_size,
            longest=self.longest,
            temperature=self.temperature,
            compute_dtype=self.dtype,
            device=self.device,
        )
        if self.refusal:
            return None
        try:
            if not self.draws_by_seed:
                self._check_seeds(prompt=tuple(ids[:1]))
            found = float(np.mean(self._wait(self._scored(ids))))
            self._on_workers("siirl_label_weights", self.label)
        except RunFailed as error:
            self.refusal = str(error)
            return None
        probe = ChecksumPair(trained=expected, acting=found, tolerance=PROBE_TOLERANCE[self.dtype])
        return [*pairs, probe]

    def _send(self, weights: Iterator[Rows]) -> list[ChecksumPair]:
        """Send all weights; returns the checksum of the workers, once if they agree.

        A server that is being restarted has `restart_s` to answer.

        Raises:
            RunFailed: The server refuses them or does not answer.
        """
        self.label = f"{self._ids}-{secrets.token_hex(4)}"
        # the server's requests would mix two versions of the weights
        pause = self.link.post("/pause", reconnect_s=self.restart_s, mode="abort")
        self._wait(self._interrupting(pause))
        self._on_workers("siirl_set_temperature", str(self.temperature))  # a restart loses it
        self._on_workers("siirl_begin_weights")
        exported = loadable(self.model, weights, self.dtype)
        with self.route.open(self.link) as transport:
            expected = send(exported, transport, bucket_bytes=self.bucket_bytes)
        found = [
            str(number) for number in self._on_workers("siirl_finish_weights")
        ]  # vLLM's workers return texts
        if not all(number.isdecimal() for number in found):
            raise RunFailed(
                f"The inference server at {self.link.url} answers with {shortened(found)} instead "
                "of the checksums of its workers: install the same version of siirl at both ends."
            )
        self._wait(self.link.post("/reset_prefix_cache"))
        self._wait(self.link.post("/resume"))
        return [
            ChecksumPair(trained=expected, acting=number) for number in sorted(set(map(int, found)))
        ]

    def _check_seeds(self, *, prompt: tuple[int, ...]) -> None:
        self._wait(
            check_seeds(
                self.link,
                model=self.served_model,
                prompt=prompt,
                stop_ids=self.tokenizer.stop_ids,
                name=self._ids,
            )
        )
        self._on_workers("siirl_set_temperature", str(self.temperature))
        self.draws_by_seed = True

    async def _scored(self, ids: list[int]) -> list[float]:
        body = scoring_body(ids, model=self.served_model)
        most = largest_answer(len(ids))
        content = await self.link.content("POST", COMPLETIONS, body=body, most_bytes=most)
        try:
            return scored_log_probs(content, ids=ids)
        except BadAnswer as error:
            raise self.link.unusable(error) from error

    # Verification that the server still has the weights

    async def _verify(self) -> None:
        """Check the server's weights before the first request of a rollout."""
        if self.gone or self.refusal:
            raise ServerError(self.gone or self.refusal)
        if self._verification is None:
            self._verification = asyncio.ensure_future(self._require_own_weights())
        await asyncio.shield(self._verification)

    async def _require_own_weights(self) -> None:
        try:
            if await self._has_own_weights():
                return
            raise ServerError(self._lost())
        except ServerError as error:
            self.gone = str(error)
            raise

    async def _has_own_weights(self) -> bool:
        description = await worker_description(self.link)
        return bool(description.get("label") == self.label)

    def _lost(self) -> str:
        return (
            f"The inference server at {self.link.url} no longer has the weights of this run: it "
            "was restarted, or another run uses it. Give each run its own server, and resume "
            "from the last checkpoint."
        )

    # Calls

    def _on_workers(self, method: str, *arguments: str) -> list[Any]:
        """Call a method of `ServerWorker` on every worker."""
        return self._wait(call_workers(self.link, method, *arguments))

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work` on the link's loop.

        Raises:
            RunFailed: No usable answer.
        """
        try:
            return self.link.wait(work)
        except ServerError as error:
            raise RunFailed(str(error)) from error
