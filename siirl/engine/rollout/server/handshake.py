"""Handshake with an inference server: its model, and siirl's extension in its workers.

Does not import torch: the checks before a run call it.
"""

from dataclasses import dataclass
from typing import Any

from siirl.engine.rollout.server.server_link import ServerError, ServerLink

PROTOCOL = 2
"""Version of the methods of `siirl.engine.rollout.server.server_worker`."""
NO_WEIGHTS = ""
"""Label of weights before any run has loaded its own."""
START = "docs/inference_server.md has the command that starts vLLM"
LACKS_METHOD = (404, 500)  # HTTP status without development mode; without siirl's extension


@dataclass(frozen=True)
class ServedModel:
    """The model of a server."""

    name: str
    longest: int
    """Tokens of the longest prompt and its continuation together."""


async def shake_hands(link: ServerLink, *, dtype: str, longest_text: int | None) -> ServedModel:
    """Check that a server can generate for a run.

    Args:
        link: The connections to it.
        dtype: Type of the run's passes, as in "bfloat16".
        longest_text: Tokens of the run's longest text; None: unknown.

    Raises:
        ServerError: The server does not answer, or does not fit the run.
    """
    served = await _served(link)
    if longest_text is not None and served.longest < longest_text:
        raise ServerError(
            f"The inference server at {link.url} is limited to {served.longest} tokens, but "
            f"data.max_prompt_length + data.max_response_length is {longest_text}: start it with "
            f"--max-model-len {longest_text}, or lower these."
        )
    description = await worker_description(link)
    protocol, computes_in = description.get("protocol"), description.get("dtype")
    if protocol != PROTOCOL:
        raise ServerError(
            f"The inference server at {link.url} has siirl {description.get('siirl')} (protocol "
            f"{protocol}), but this run has protocol {PROTOCOL}: install the same version of siirl "
            "on both sides."
        )
    if computes_in != dtype:
        raise ServerError(
            f"The inference server at {link.url} computes in {computes_in}, but the run computes "
            f"in {dtype}: start it with --dtype {dtype}, or set "
            f"actor_rollout_ref.model.dtype={computes_in}."
        )
    return served


async def _served(link: ServerLink) -> ServedModel:
    answer = await link.get("/v1/models")
    try:
        first = answer["data"][0]
        return ServedModel(str(first["id"]), int(first["max_model_len"]))
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise ServerError(
            f"The inference server at {link.url} lists no model with its max_model_len: it is not "
            f"vLLM. {START}."
        ) from error


async def worker_description(link: ServerLink) -> dict[str, Any]:
    """The first worker's description of itself.

    Raises:
        ServerError: No worker with siirl's extension.
    """
    try:
        [description, *_] = await call_workers(link, "siirl_describe")
    except ServerError as error:
        if error.status not in LACKS_METHOD:
            raise
        raise ServerError(
            f"The inference server at {link.url} does not take weights (HTTP {error.status} "
            f"{error.explanation}): it needs VLLM_SERVER_DEV_MODE=1 and siirl's "
            f"--worker-extension-cls. {START}."
        ) from error
    if not isinstance(description, dict):
        raise ServerError(
            f"The inference server at {link.url} runs another version of siirl: install the same "
            "version on both sides."
        )
    return description


async def call_workers(link: ServerLink, method: str, *arguments: str) -> list[Any]:
    """Results of a method of `ServerWorker`, one per worker.

    Raises:
        ServerError: No usable answer.
    """
    answer = await link.post("/collective_rpc", {"method": method, "args": list(arguments)})
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or not results:
        raise ServerError(
            f"The inference server at {link.url} answers /collective_rpc without results: it is "
            f"not vLLM. {START}."
        )
    return results
