"""An inference server for runs, in one file: the routes of vLLM that rollout=server reads.

python inference_server.py MODEL_FOLDER 8100

siirl train pipeline=grpo env=math rollout=server \
    "actor_rollout_ref.rollout.server.urls=[http://127.0.0.1:8100]"

It generates with siirl's own engine on a CPU, in float32. Use it as a description of the
routes, as a starting point for another engine, or to try rollout=server without vLLM. Left out:
authentication, clients other than one run, top-p and top-k.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from siirl import __version__
from siirl.engine.rollout.generation import GenerationRequest
from siirl.engine.rollout.hf.hf_engine import HFEngine
from siirl.engine.rollout.server.handshake import NO_WEIGHTS, PROTOCOL
from siirl.engine.rollout.server.weight_folder import read_bucket
from siirl.engine.rollout.server.weight_group import WeightGroup, join_group
from siirl.engine.rollout.vllm.vllm_probe import next_token_logits
from siirl.engine.training.weight_buckets import Entry
from siirl.models.chat import ChatTokenizer, load_chat_tokenizer
from siirl.models.checksum import RunningChecksum
from siirl.models.language_model import LanguageModel, load_language_model

NAME = "policy"
MAX_RUNNING = 64


class Worker:
    """The weights, and the methods that a run calls by /collective_rpc; all arguments are texts."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.temperature = 1.0
        self.label = NO_WEIGHTS
        self.digest = RunningChecksum()
        self.group: WeightGroup | None = None

    def siirl_describe(self) -> dict[str, Any]:
        """Versions, type of the weights, and label of the weights that a run loaded last."""
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        return {
            "protocol": PROTOCOL,
            "siirl": __version__,
            "dtype": dtype,
            "label": self.label,
        }

    def siirl_set_temperature(self, temperature: str) -> None:
        """Divide the logits by `temperature` from now on."""
        self.temperature = float(temperature)

    def siirl_begin_weights(self) -> None:
        """Prepare for new weights."""
        self.label, self.digest = NO_WEIGHTS, RunningChecksum()

    def siirl_take_file(self, file: str, packed: str) -> None:
        """Load the weights of a bucket: a file, and names, types, shapes and places in it."""
        entries = [Entry.unpacked(each) for each in json.loads(packed)]
        self._load(entries, read_bucket(file, entries))

    def siirl_join_group(self, host: str, port: str, ranks: str) -> None:
        """Join the group in which the run broadcasts its weights."""
        self.group = join_group(host, int(port), rank=1, ranks=int(ranks))

    def siirl_take_broadcast(self, size: str, packed: str) -> None:
        """Load the weights of a bucket that the run broadcasts."""
        assert self.group is not None
        buffer = torch.empty(int(size), dtype=torch.uint8)
        self.group.broadcast(buffer).wait()
        self._load([Entry.unpacked(each) for each in json.loads(packed)], buffer)

    def siirl_leave_group(self) -> None:
        """Close the connections to the run."""
        self.group = None

    def _load(self, entries: list[Entry], buffer: torch.Tensor) -> None:
        own = self.model.state_dict()
        for rows in (entry.rows(buffer) for entry in entries):
            self.digest.add(rows)
            rows.of(own[rows.name]).copy_(rows.values)

    def siirl_finish_weights(self) -> int:
        """Checksum of all weights that arrived."""
        return self.digest.value

    def siirl_label_weights(self, label: str) -> None:
        """Name the weights that were loaded."""
        self.label = label


class InferenceServer:
    """The routes."""

    def __init__(self, model: LanguageModel, tokenizer: ChatTokenizer) -> None:
        self.worker, self.tokenizer = Worker(model), tokenizer
        self.engine = self._engine()
        self.resumed = asyncio.Event()
        self.resumed.set()

    def _engine(self) -> HFEngine:
        return HFEngine(
            model=self.worker.model,
            tokenizer=self.tokenizer,
            temperature=self.worker.temperature,
            max_running=MAX_RUNNING,
        )

    def app(self) -> Starlette:
        """The application, for any ASGI server."""
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/collective_rpc", self.collective_rpc, methods=["POST"]),
                Route("/pause", self.pause, methods=["POST"]),
                Route("/resume", self.resume, methods=["POST"]),
                Route("/abort_requests", self.abort_requests, methods=["POST"]),
                Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
            ]
        )

    async def models(self, request: Request) -> Response:
        """The one model, and the longest text it holds."""
        entry = {"id": NAME, "object": "model", "max_model_len": self.engine.longest}
        return JSONResponse({"object": "list", "data": [entry]})

    async def completions(self, request: Request) -> Response:
        """Continue a prompt of token ids, or score one (`echo` with `max_tokens` 0)."""
        body = await request.json()
        if body.get("echo"):
            return JSONResponse(self._scored(body["prompt"]))
        if body["temperature"] > 0.0 and (body["top_p"], body["top_k"]) != (1.0, 0):
            return _refusal("this server draws from the whole distribution", status=400)
        await self.resumed.wait()
        generation = asyncio.ensure_future(self._continued(body))
        gone = asyncio.ensure_future(request.receive())  # the client has closed the connection
        await asyncio.wait({generation, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not generation.done():
            generation.cancel()
            return Response(status_code=499)
        return JSONResponse(generation.result())

    async def _continued(self, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self.engine.agenerate(
            GenerationRequest(
                uid=body["request_id"],
                input_ids=tuple(body["prompt"]),
                max_new_tokens=body["max_tokens"],
                seed=(body["seed"],),
                greedy=body["temperature"] == 0.0,
                stop=tuple(body["stop"]),
            )
        )
        return _answer(
            answer.tokens.tolist(), answer.log_probs.tolist(), reason=answer.finish_reason
        )

    def _scored(self, ids: list[int]) -> dict[str, Any]:
        logits_SV = next_token_logits(
            self.worker.model, torch.tensor([ids]), compute_dtype=torch.float32
        )
        log_probs_SV = torch.log_softmax(logits_SV / self.worker.temperature, dim=-1)
        found = log_probs_SV.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
        return _answer(ids, [None, *found.tolist()], reason="length")

    async def collective_rpc(self, request: Request) -> Response:
        """Call a method of the worker; an error is answered as vLLM answers it."""
        body = await request.json()
        try:
            result = getattr(self.worker, body["method"])(*body["args"])
        except (AttributeError, KeyError, OSError, RuntimeError, ValueError) as error:
            return _refusal(str(error), status=500)
        if body["method"] == "siirl_set_temperature":
            self.engine = self._engine()
        whole = result is None or isinstance(result, dict | list)
        return JSONResponse({"results": [result if whole else str(result)]})

    async def pause(self, request: Request) -> Response:
        """End all requests with the tokens they have; later ones wait."""
        self.resumed.clear()
        self.engine.interrupt()
        return JSONResponse({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        """Begin the requests that wait."""
        self.resumed.set()
        return JSONResponse({"status": "resumed"})

    async def abort_requests(self, request: Request) -> Response:
        """End all requests with the tokens they have; vLLM ends those that the body names."""
        self.engine.interrupt()
        return JSONResponse({"status": "aborted"})

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Forget keys and values of the old weights; this engine keeps none between requests."""
        return JSONResponse({"success": True})


def _answer(tokens: list[int], log_probs: list[Any], *, reason: str) -> dict[str, Any]:
    choice = {
        "index": 0,
        "text": "",
        "token_ids": tokens,
        "logprobs": {"token_logprobs": log_probs},
        "finish_reason": reason,
    }
    return {"object": "text_completion", "model": NAME, "choices": [choice]}


def _refusal(message: str, *, status: int) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)


def main(folder: str, port: str) -> None:
    """Serve the model of a folder to this machine until Ctrl-C."""
    model = load_language_model(folder, dtype=torch.float32)
    server = InferenceServer(model, load_chat_tokenizer(folder))
    uvicorn.run(server.app(), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
