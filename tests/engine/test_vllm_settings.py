"""vLLM reserves room for the texts of the run, not for the longest that the model could hold."""

import math
from types import SimpleNamespace

import pytest
import torch
from pydantic import BaseModel

from siirl.engine.rollout.vllm.vllm_settings import engine_settings, start_errors, text_length
from siirl.errors import EngineDied, RunFailed
from siirl.models.language_model import NO_LIMIT

LONG = 131_072


def settings(**options):
    job = {
        "dtype": torch.bfloat16,
        "model_length": LONG,
        "longest_text": 1536,
        "max_running": 64,
        "kv_cache_gib": 0.5,
        "num_gpus": 1,
    }
    return engine_settings(**{**job, "on_cpu": True, **options})


@pytest.mark.parametrize(
    ("model_length", "longest_text", "expected"),
    [
        (LONG, 1536, 1536),
        (NO_LIMIT, 1536, 1536),
        (1024, 1536, 1024),
        (1024, 2, 17),  # a short probe of sixteen, and one that is generated
        (8, 2, 8),
        (LONG, None, LONG),
    ],
    ids=[
        "long model",
        "model that names no end",
        "short model",
        "texts shorter than the probe",
        "model shorter than the probe",
        "unknown",
    ],
)
def test_memory_is_reserved_for_the_texts_of_the_run(model_length, longest_text, expected):
    assert text_length(model_length=model_length, longest_text=longest_text) == expected


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 2048),
        ({"longest_text": 6144}, 6144),
        ({"max_running": 3000}, 3000),
        ({"model_length": 4096, "longest_text": None}, 4096),
    ],
    ids=["vLLM's own", "a long text", "many requests", "unknown texts"],
)
def test_a_pass_on_a_cpu_holds_the_longest_text_and_a_token_of_each_other_request(options, tokens):
    asked = settings(**options)
    assert (
        asked["max_num_batched_tokens"],
        asked["enable_chunked_prefill"],
        asked["enforce_eager"],
    ) == (tokens, False, True)


def test_a_gpu_reads_long_prompts_in_parts():
    asked = settings(on_cpu=False, longest_text=6144)
    assert asked["max_model_len"] == 6144
    assert not {"max_num_batched_tokens", "enable_chunked_prefill"} & asked.keys()


def test_vllm_starts_on_a_gpu_half_full_of_training():
    request_memory = pytest.importorskip("vllm.v1.worker.utils").request_memory
    gib = 1 << 30
    gpu = SimpleNamespace(device_="cuda:0", total_memory=80 * gib, free_memory=40 * gib)
    asked = settings(on_cpu=False)
    cache = SimpleNamespace(gpu_memory_utilization=asked["gpu_memory_utilization"])
    assert request_memory(gpu, cache) == math.ceil(0.8 * gib)
    cache.gpu_memory_utilization = 0.92  # vLLM's own
    with pytest.raises(ValueError, match="less than desired GPU memory utilization"):
        request_memory(gpu, cache)


def test_an_engine_on_several_gpus_asks_rays_placement_group_for_none(monkeypatch):
    config = pytest.importorskip("vllm.config").ParallelConfig
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: "of a rank")
    name = "distributed_executor_backend"
    assert getattr(config(tensor_parallel_size=2), name) == "ray"  # vLLM's own choice there
    asked = settings(on_cpu=False, num_gpus=2)
    assert getattr(config(tensor_parallel_size=2, **{name: asked[name]}), name) == "mp"
    assert name not in settings(on_cpu=False, num_gpus=1)


def test_without_the_texts_of_a_run_vllm_takes_what_fits():
    assert (settings()["max_model_len"], settings(longest_text=None)["max_model_len"]) == (1536, -1)


def test_vllms_errors_are_reported_with_the_keys_of_the_run():
    with pytest.raises(RunFailed) as failed, start_errors(settings(kv_cache_gib=0.25)):
        raise ValueError("of several lines\nTo serve one request 0.5 GiB KV cache is needed.")
    assert str(failed.value) == (
        "vLLM does not start: To serve one request 0.5 GiB KV cache is needed. (Here "
        "max_model_len=1536 is data.max_prompt_length + "
        "data.max_response_length, and its memory for keys and values is "
        "actor_rollout_ref.rollout.kv_cache_gib=0.25.)"
    )


@pytest.mark.parametrize(
    ("ended", "said"),
    [("{'EngineCore_DP0': -9}", "signal 9 ended its process"), ("{}", "its process ended")],
)
def test_a_process_that_is_killed_while_it_starts_is_an_engine_that_died(ended, said):
    with pytest.raises(EngineDied, match=said), start_errors(settings()):
        raise RuntimeError(
            f"Engine core initialization failed. See root cause above. Failed core proc(s): {ended}"
        )


def test_pydantics_message_is_reported_without_its_link():
    class Settings(BaseModel):
        length: int

    with (
        pytest.raises(
            RunFailed, match=r"vLLM does not start: Input should be a valid integer, .* \(Here"
        ),
        start_errors(settings()),
    ):
        Settings(length="many")
