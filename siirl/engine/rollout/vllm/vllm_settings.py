"""Starts vLLM for a job: arguments, changes to the process, and translation of errors."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from siirl.engine.training.network import LOOPBACK
from siirl.errors import EngineDied, RunFailed
from siirl.params.sizes import GIB

EXTENSION = "siirl.engine.rollout.vllm.vllm_worker.WorkerExtension"
# Read by vLLM and torch at import. Without them vLLM binds threads to busy cores, logs, and sends
# usage statistics.
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    # An engine's processes share a machine. By default they listen at the address of its name.
    "VLLM_HOST_IP": LOOPBACK,
}
# Lengths of the text that verifies new weights, in tokens: vLLM reserves room for the shorter one,
# and the longer one is used where the texts of the run have the room.
PROBE_TOKENS, SHORT_PROBE_TOKENS = 256, 16
PROBE_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Largest mean log-prob difference between trained and acting module with the same weights.

Measured on the shipped model: 5e-7 in float32 and 6e-3 in bfloat16. Of a random model with 28
layers and log-probs of -15, as a trained one gives to random tokens, two attention kernels in
bfloat16 differ by 5e-2 for each token. The mean over 256 tokens then differs by 1e-2 at most (20
texts), over 16 by more than 3e-2 in every tenth text.
"""
BATCHED_TOKENS = 2048  # of a pass: vLLM's default for a CPU; more if one text may be longer
# Share of a GPU that must be free when vLLM starts, 92 % by default. Training already holds its
# weights there. vLLM's own memory is set by kv_cache_gib and part of the plan
# (siirl.preflight.rank_memory).
LEAST_FREE_SHARE = 0.01
# vLLM's code for the model's length, or the length that fits into the key-value memory
WHAT_FITS = -1


def text_length(*, model_length: int, longest_text: int | None) -> int:
    """Tokens of the longest text that vLLM must hold.

    The limit follows from the run, not from the model: vLLM sizes buffers and passes by it, and
    models reach 131,072 tokens or have no limit. A short probe and the token after it always fit.

    Args:
        model_length: `LanguageModel.max_length`.
        longest_text: Tokens of the longest prompt and its continuation together; None: unknown; the
            model's length is used.
    """
    if longest_text is None:
        return model_length
    return min(model_length, max(longest_text, SHORT_PROBE_TOKENS + 1))


def engine_settings(
    *,
    dtype: torch.dtype,
    model_length: int,
    longest_text: int | None,
    max_running: int,
    kv_cache_gib: float,
    num_gpus: int,
    on_cpu: bool,
    sleeps: bool = False,
    exchanges: bool = False,
) -> dict[str, Any]:
    """Arguments of vLLM's engine, except the folders of model and tokenizer.

    vLLM starts with dummy weights, because the trained ones arrive in memory.

    Compiling for a CPU takes minutes and gains little. On a CPU each prompt is prefilled in one
    pass: a chunked prefill of vLLM 0.32 rewinds the request's generator, which CPU generators do
    not support. A pass must then hold the longest text, and a token of every running request.

    Args:
        dtype: Type of weights and passes.
        model_length: The model's largest number of tokens (`LanguageModel.max_length`).
        longest_text: Tokens of the longest prompt and its continuation together; None: unknown.
        max_running: Largest number of requests in one pass.
        kv_cache_gib: Memory for keys and values.
        num_gpus: GPUs of one engine.
        on_cpu: Whether the engine computes on a CPU.
        sleeps: Whether it frees its memory between rollouts; not on a CPU.
        exchanges: Whether it gets new weights while requests are running. vLLM then schedules a
            step only after the one before: an exchange between two that overlap could lose a token
            (vLLM issue 42043).
    """
    length = text_length(model_length=model_length, longest_text=longest_text)
    device: dict[str, Any] = {"enforce_eager": on_cpu}
    if on_cpu:
        device |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(BATCHED_TOKENS, length, max_running),
        }
    else:
        device["gpu_memory_utilization"] = LEAST_FREE_SHARE
    if num_gpus > 1:
        # vLLM in a Ray actor would ask the actor's placement group for workers with a GPU each: its
        # bundles are machines, whose GPUs the ranks hold.
        device["distributed_executor_backend"] = "mp"
    return {
        "dtype": str(dtype).removeprefix("torch."),
        # logits as in training (siirl.algos.products)
        "hf_overrides": {"head_dtype": "float32"},
        "max_model_len": WHAT_FITS if longest_text is None else length,
        "max_num_seqs": max_running,
        "kv_cache_memory_bytes": int(kv_cache_gib * GIB),
        **device,
        "tensor_parallel_size": num_gpus,
        "logprobs_mode": "raw_logprobs",
        "generation_config": "vllm",  # the folder's file would change the sampling of every request
        "worker_extension_cls": EXTENSION,
        "load_format": "dummy",
        "enable_sleep_mode": sleeps,
        **({"async_scheduling": False} if exchanges else {}),
        "disable_log_stats": True,
    }


@contextlib.contextmanager
def process_state_restored() -> Iterator[None]:
    """Undo changes that vLLM makes to the process at start (seeds, number of threads)."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    set_num_threads = torch.set_num_threads
    default_dtype = torch.get_default_dtype()
    numbers = np.random.get_state()
    # vLLM 0.32 inspects attributes of all objects in every module, and fails on llvmlite's library,
    # which has attributes of every name.
    hidden = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.partition(".")[0] == "llvmlite"
    }
    with torch.random.fork_rng():
        try:
            yield
        finally:
            sys.modules.update(hidden)
            torch.set_num_threads = set_num_threads
            torch.set_default_dtype(default_dtype)
            np.random.set_state(numbers)


@contextlib.contextmanager
def start_errors(settings: dict[str, Any]) -> Iterator[None]:
    """Raise vLLM's start errors as RunFailed, with the reason and the keys that set `settings`; as
    EngineDied if something ended its process.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = _reason(error)
        if signal := re.search(r"EngineCore[^']*': -(\d+)", reason):
            raise EngineDied(
                f"vLLM does not start: signal {signal[1]} ended its process. The machine may have "
                "run out of memory."
            ) from error
        if reason.endswith("Failed core proc(s): {}"):
            raise EngineDied(
                "vLLM does not start: its process ended. It was killed, perhaps because the "
                "machine ran out of memory, or its own lines name the error."
            ) from error
        length = settings["max_model_len"]
        memory = settings["kv_cache_memory_bytes"] / GIB
        keys = ""
        if length != WHAT_FITS:
            keys = (
                f"max_model_len={length} is data.max_prompt_length + data.max_response_length, and "
            )
        keys += (
            f"its memory for keys and values is actor_rollout_ref.rollout.kv_cache_gib={memory:g}"
        )
        raise RunFailed(f"vLLM does not start: {reason} (Here {keys}.)") from error


def _reason(error: RuntimeError | ValueError) -> str:
    """The last line of the error; for a pydantic error the first line of its first message."""
    if isinstance(error, ValidationError):
        return str(error.errors()[0]["msg"]).splitlines()[0]
    return str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
