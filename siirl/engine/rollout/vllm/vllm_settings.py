"""What vLLM is started with: arguments of its engine that follow from the job, and what it says
when it cannot start.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from pydantic import ValidationError

from siirl.engine.training.network import LOOPBACK
from siirl.errors import RunFailed
from siirl.execution.scheduler.private_session import PRIVATE_FOLDER

EXTENSION = "siirl.engine.rollout.vllm.vllm_worker.WorkerExtension"
# Read by vLLM and torch when they are imported. Without them vLLM binds threads to cores that
# others use, logs, and reports home.
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    # An engine's processes share a machine. Left alone, they listen where its name leads.
    "VLLM_HOST_IP": LOOPBACK,
    # And their sockets lie in /tmp, shut by the user's umask alone.
    **({"VLLM_RPC_BASE_PATH": os.environ[PRIVATE_FOLDER]} if PRIVATE_FOLDER in os.environ else {}),
}
PROBE_TOKENS = 16  # of the text by which new weights are proved
PROBE_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Mean difference of log-probs between two programs with the same weights (DESIGN, invariant 6);
measured 5e-7 and 6e-3.
"""
GIB = 1 << 30
BATCHED_TOKENS = 2048  # of a pass, vLLM's own choice for a CPU; more where one text may be longer
WHAT_FITS = (
    -1
)  # vLLM's word for: the model's own length, or what fits into the memory for keys and values


def text_length(*, model_length: int, longest_text: int | None) -> int:
    """Tokens of the longest text that vLLM must be able to hold.

    That is what the run can ask for, not what the model could: buffers and passes are made for it,
    and models go to 131,072 tokens or name no end at all. The probe and the token after it fit in
    any case.

    Args:
        model_length: `LanguageModel.max_length`.
        longest_text: Tokens of the longest prompt and its continuation together; None: nobody
            knows, so the model's.
    """
    return (
        model_length
        if longest_text is None
        else min(model_length, max(longest_text, PROBE_TOKENS + 1))
    )


def engine_settings(
    *,
    dtype: torch.dtype,
    model_length: int,
    longest_text: int | None,
    max_running: int,
    kv_cache_gib: float,
    num_gpus: int,
    on_cpu: bool,
) -> dict[str, Any]:
    """Arguments of vLLM's engine, but for where model and tokenizer are.

    Compiling for a CPU takes minutes and gains little. And there each prompt is read at once: where
    one is read in parts, vLLM 0.32 winds the request's own generator back, which a CPU's cannot. A
    pass must then hold the longest text, and a token of everyone who runs.

    Args:
        dtype: Of weights and passes.
        model_length: See `text_length`.
        longest_text: See `text_length`.
        max_running: Most requests in one pass.
        kv_cache_gib: Memory for keys and values.
        num_gpus: Of one engine.
        on_cpu: Whether it computes on one.
    """
    length = text_length(model_length=model_length, longest_text=longest_text)
    passes: dict[str, Any] = {"enforce_eager": on_cpu}
    if on_cpu:
        passes |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(BATCHED_TOKENS, length, max_running),
        }
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "hf_overrides": {
            "head_dtype": "float32"
        },  # logits as training makes them (siirl.algos.products)
        "max_model_len": WHAT_FITS if longest_text is None else length,
        "max_num_seqs": max_running,
        "kv_cache_memory_bytes": int(kv_cache_gib * GIB),
        **passes,
        "tensor_parallel_size": num_gpus,
        "logprobs_mode": "raw_logprobs",
        "generation_config": "vllm",  # the folder's own would change the sampling of every request
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
    }


@contextlib.contextmanager
def start_errors(settings: dict[str, Any]) -> Iterator[None]:
    """What vLLM raises when it cannot start, as an error of ours: its last line says why, in its
    own words for what `settings` asked.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = _reason(error)
        length, memory = settings["max_model_len"], settings["kv_cache_memory_bytes"] / GIB
        asked = (
            ""
            if length == WHAT_FITS
            else f"max_model_len={length} is data.max_prompt_length + data.max_response_length, and "
        )
        memory_of = (
            f"its memory for keys and values is actor_rollout_ref.rollout.kv_cache_gib={memory:g}"
        )
        raise RunFailed(f"vLLM does not start: {reason} (Here {asked}{memory_of}.)") from error


def _reason(error: RuntimeError | ValueError) -> str:
    """One line: the last, but of what pydantic says of settings the first of its message, behind
    which it explains itself.
    """
    if isinstance(error, ValidationError):
        return str(error.errors()[0]["msg"]).splitlines()[0]
    return str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
