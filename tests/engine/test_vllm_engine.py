"""The real vLLM on a CPU: log-probs as training scores them, sampling, stops, new weights
and their check, interruption.
"""

import asyncio
import contextlib
import importlib.util
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import torch
from tiny_language_models import language_model, request, scored, tokenizer
from tiny_policies import Trained, train

from siirl.algos.products import wide_product
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.engine.rollout.vllm.vllm_probe import trained_log_prob
from siirl.engine.rollout.vllm.weight_places import PackedLayers
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.weight_sync import WeightSync
from siirl.errors import ConfigError, InvariantError, RunFailed
from siirl.models.adapters import adapters_first
from siirl.models.language_model import load_language_model
from siirl.models.weight_rows import in_rows
from siirl.params import packages
from tests.engine.knocking import knocked_at, ports

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"
)
TEMPERATURE = 1.3


def make_engine(name: str, *, model=None, **options):
    import llvmlite.binding  # noqa: F401  (numba's, which vLLM trips over where it finds it)

    from siirl.engine.rollout.vllm import async_vllm_engine, vllm_engine

    # Heads of 32 entries are the smallest that vLLM has on a CPU; the head is tied to the
    # embedding, as small models have it.
    model = model or language_model("Qwen3", heads=2, head_dim=32, tie_word_embeddings=True)
    settings = {
        "temperature": TEMPERATURE,
        "top_p": 0.9,
        "max_running": 32,
        "lockstep": False,
        "kv_cache_gib": 0.05,
        **options,
    }
    module = async_vllm_engine if name.startswith("Async") else vllm_engine
    return getattr(module, name)(model=model, tokenizer=tokenizer(), **settings)


@pytest.fixture(scope="module")
def others():
    """Ports at which other tests of this process listen."""
    return ports(psutil.Process())


@pytest.fixture(scope="module")
def engine(others):
    made = make_engine("VLLMEngine")
    yield made
    made.close()


def ask(engine, *requests: GenerationRequest) -> list[GenerationResponse]:
    async def everybody():
        return await asyncio.gather(*(engine.agenerate(request) for request in requests))

    return asyncio.run(everybody())


def gap(engine, *requests: GenerationRequest) -> float:
    """Largest difference between acting log-probs and those of one pass of the module without a
    cache.
    """
    gaps = []
    for asked, answer in zip(requests, ask(engine, *requests), strict=True):
        expected = scored(
            engine.model, asked.input_ids, answer.tokens, temperature=TEMPERATURE
        ).numpy()
        gaps.append(np.abs(answer.log_probs - expected).max())
    return max(gaps)


REQUESTS = [
    request(str(i), prompt, tokens=8)
    for i, prompt in enumerate(("1+2=", "what is 3 times 4?", "x"))
]


@needs_vllm
def test_ports_of_an_engine_are_on_the_loopback_and_accept_no_one(others, engine):
    assert knocked_at(ports(psutil.Process()) - others) == {("127.0.0.1", False)}


@needs_vllm
def test_log_probs_are_those_of_the_whole_distribution_under_the_temperature(engine):
    assert gap(engine, *REQUESTS) < 1e-5


@needs_vllm
def test_log_probs_of_greedy_requests_are_those_of_training(engine):
    assert gap(engine, request("a", "1+2=", tokens=8, greedy=True)) < 1e-5


@needs_vllm
def test_samples_of_one_prompt_differ_by_their_seeds(engine):
    first, second, again = ask(
        engine, *(request("a", "x", tokens=20, seed=seed) for seed in ((1,), (2,), (1,)))
    )
    assert first.tokens.tolist() == again.tokens.tolist() != second.tokens.tolist()


@needs_vllm
def test_prompts_that_do_not_fit_into_a_pass_together_are_answered_as_they_are_alone(engine):
    """32 prompts of 100 tokens are more than the 2048 of a pass."""
    asked = [request(str(i), f"{i:02d}" + "x" * 98, tokens=4, seed=(i,)) for i in range(32)]
    together = [answer.tokens.tolist() for answer in ask(engine, *asked)]
    alone = [ask(engine, one)[0].tokens.tolist() for one in asked[15:25]]
    assert together[15:25] == alone


@needs_vllm
def test_top_k_of_one_is_greedy(engine, monkeypatch):
    (greedy,) = ask(engine, request("a", "17+25=", tokens=8, greedy=True))
    (free,) = ask(engine, request("a", "17+25=", tokens=8))
    monkeypatch.setattr(engine, "top_k", 1)
    (sampled,) = ask(engine, request("a", "17+25=", tokens=8))
    assert sampled.tokens.tolist() == greedy.tokens.tolist() != free.tokens.tolist()
    # of the whole distribution: not 0
    np.testing.assert_allclose(sampled.log_probs, greedy.log_probs, atol=1e-5)


@needs_vllm
def test_top_p_never_draws_outside_of_the_nucleus(engine, monkeypatch):
    with torch.no_grad():
        logits = engine.model.causal_lm(input_ids=torch.tensor([[5]])).logits[0, -1]
    probabilities = (logits / TEMPERATURE).softmax(-1)
    ordered = probabilities.sort(descending=True)
    likely = set(ordered.indices[: int((ordered.values.cumsum(0) < 0.5).sum()) + 1].tolist())
    draws = [request(str(i), (5,), tokens=1) for i in range(100)]
    # the fixture's nucleus reaches 0.9
    assert not {int(answer.tokens[0]) for answer in ask(engine, *draws)} <= likely
    monkeypatch.setattr(engine, "top_p", 0.5)
    answers = ask(engine, *draws)
    assert {int(answer.tokens[0]) for answer in answers} <= likely
    np.testing.assert_allclose(
        answers[0].log_probs, probabilities[answers[0].tokens].log(), atol=1e-5
    )  # of the whole distribution


@pytest.fixture
def endless(monkeypatch):
    """No token ends a continuation, unless a test says so."""
    monkeypatch.setattr(tokenizer(), "stop_ids", frozenset())


@needs_vllm
def test_a_limit_and_a_stop_token_end_a_continuation(engine, endless, monkeypatch):
    (free,) = ask(engine, request("a", "1+2=", tokens=12))
    token = int(free.tokens[3])
    monkeypatch.setattr(tokenizer(), "stop_ids", frozenset({token}))
    (answer,) = ask(engine, request("a", "1+2=", tokens=12))
    assert (free.finish_reason, answer.finish_reason) == ("length", "stop")
    first = free.tokens.tolist().index(token)
    assert answer.tokens.tolist() == free.tokens[: first + 1].tolist()


@needs_vllm
def test_a_stop_string_ends_a_continuation_and_keeps_its_tokens(engine, endless):
    (free,) = ask(engine, request("a", "1+2=", tokens=60))
    texts = [tokenizer().decode([token]) for token in free.tokens.tolist()]
    place = next(
        place
        for place in range(1, 60)
        if (texts[place - 1] + texts[place]).isascii() and texts[place - 1] and texts[place]
    )
    (answer,) = ask(
        engine, request("a", "1+2=", tokens=60, stop=(texts[place - 1] + texts[place],))
    )
    assert answer.finish_reason == "stop"
    assert answer.tokens.tolist() == free.tokens[: place + 1].tolist()


@needs_vllm
def test_a_request_that_vllm_refuses_raises_at_its_caller(engine):
    from vllm.exceptions import VLLMValidationError

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        with pytest.raises(VLLMValidationError, match="stop"):
            await engine.agenerate(request("a", "x", stop=("",)))
        return await engine.agenerate(request("b", "x", tokens=2, greedy=True))

    assert len(asyncio.run(scenario()).tokens) > 0


@needs_vllm
def test_a_request_longer_than_the_model_is_refused(engine):
    with pytest.raises(ConfigError, match="limit is 128"):
        ask(engine, request("a", "x" * 100, tokens=29))


@needs_vllm
def test_an_interruption_returns_the_partial_answers(engine, endless):
    async def scenario():
        engine.take_stats()
        running = asyncio.create_task(engine.agenerate(request("a", "x", tokens=100)))
        while engine.counts.tokens < 5:
            await asyncio.sleep(0)
        engine.interrupt()
        return await running, await engine.agenerate(request("b", "x", tokens=2))

    partial, later = asyncio.run(scenario())
    assert (partial.finish_reason, len(partial.tokens), len(partial.log_probs)) == ("abort", 5, 5)
    assert len(later.tokens) == 2


@needs_vllm
def test_new_weights_act_and_their_log_probs_are_verified(engine, endless):
    ask(engine, *REQUESTS)  # prefixes of the old weights are in the cache
    train(engine.model, seed=1)
    assert gap(engine, *REQUESTS) > 0.01
    WeightSync(
        trained=Trained(engine.model), acting=engine, engine=engine, ranks=OneProcess()
    ).sync()
    assert gap(engine, *REQUESTS) < 1e-5
    assert ask(engine, REQUESTS[0])[0].versions.tolist() == [3] * 8


@needs_vllm
def test_weights_that_arrive_during_a_request_end_the_run(engine, endless):
    def weights():
        return in_rows(adapters_first(engine.model.state_dict()))

    async def scenario():
        engine.take_stats()
        running = asyncio.create_task(engine.agenerate(request("a", "x", tokens=100)))
        while engine.counts.tokens < 5:
            await asyncio.sleep(0)
        with pytest.raises(InvariantError, match="vLLM kept keys and values of the old weights"):
            engine.take_weights(weights())
        engine.interrupt()
        await running

    asyncio.run(scenario())
    assert all(pair.agrees for pair in engine.take_weights(weights()))


async def replaced_under_way(engine, *, wait_s: float) -> GenerationResponse:
    """A continuation during which the engine gets other weights, of version 9."""
    running = asyncio.create_task(engine.agenerate(request("a", "x", tokens=60)))
    while not any(len(each.tokens) >= 5 for each in [*engine.running.values()]):
        await asyncio.sleep(wait_s)
    train(engine.model, seed=5)
    engine.replace_weights(in_rows(adapters_first(engine.model.state_dict())), version=9)
    return await running


def require_two_versions(engine, answer: GenerationResponse) -> None:
    """Tokens before and after the exchange; the later ones are those of new keys and values."""
    later = answer.versions == 9
    first = int(np.flatnonzero(later)[0])
    assert 5 <= first < 60
    assert later.tolist() == [False] * first + [True] * (60 - first)
    expected = scored(
        engine.model, request("a", "x").input_ids, answer.tokens, temperature=TEMPERATURE
    ).numpy()
    gaps = np.abs(answer.log_probs - expected)
    assert gaps[later].max() < 1e-5
    assert gaps[~later].max() > 0.01


@needs_vllm
def test_weights_replaced_during_a_request_act_on_its_further_tokens(engine, endless):
    require_two_versions(engine, asyncio.run(replaced_under_way(engine, wait_s=0)))


@needs_vllm
def test_replaced_weights_that_arrive_otherwise_are_an_error(engine, monkeypatch):
    transfer = engine._transfer
    monkeypatch.setattr(engine, "_transfer", lambda weights: transfer(weights) + 1)
    with pytest.raises(InvariantError, match="acts with weights with the checksum"):
        engine.replace_weights(in_rows(adapters_first(engine.model.state_dict())), version=1)


def replace(engine, *, change: float) -> None:
    """Send the engine the weights that it has, with a log-prob that differs by `change`."""
    ids = list(REQUESTS[0].input_ids)
    expected = trained_log_prob(
        engine.model,
        ids,
        temperature=TEMPERATURE,
        compute_dtype=torch.float32,
        device=torch.device("cpu"),
    )
    weights = in_rows(adapters_first(engine.model.state_dict()))
    engine.replace_weights(weights, version=1, probe=(ids, expected + change))


OTHERWISE = "acts with weights that give a text the log-prob"


@needs_vllm
def test_replaced_weights_must_act_as_in_training(engine):
    replace(engine, change=0.0)
    with pytest.raises(InvariantError, match=OTHERWISE):
        replace(engine, change=0.01)


@needs_vllm
def test_the_head_that_vllm_leaves_stale_is_noticed(engine, monkeypatch):
    monkeypatch.setattr(PackedLayers, "finish", lambda layers: None)
    train(engine.model, seed=2)
    sync = WeightSync(
        trained=Trained(engine.model), acting=engine, engine=engine, ranks=OneProcess()
    )
    with pytest.raises(InvariantError, match="acting weights are not the trained ones"):
        sync.sync()
    monkeypatch.undo()
    sync.sync()


@needs_vllm
def test_statistics_count_requests_steps_and_tokens(engine, endless):
    engine.take_stats()
    ask(engine, request("a", "17+25=", tokens=4), request("b", "1+1=", tokens=2))
    stats = engine.take_stats()
    assert (stats["calls"], stats["tokens"]) == (2, 6)
    assert 4 <= stats["forward_passes"] <= 6
    assert stats["busy_s"] > 0


@needs_vllm
def test_its_keys_and_values_have_the_size_that_was_set(engine):
    def allocated(worker):
        return sum(each.nbytes for each in worker.model_runner.kv_caches)

    [found] = engine._on_workers(allocated)
    assert engine.take_memory() == {"keys_values": pytest.approx(found, rel=0.02)}  # whole blocks


@needs_vllm
def test_the_process_is_left_as_it_was(engine):
    assert torch.get_default_dtype() == torch.float32
    threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    assert torch.get_num_threads() == threads


def trained_log_probs(model, prompt, tokens):
    """Log-probs of a continuation as training in bfloat16 makes them."""
    ids_1S = torch.tensor([[*prompt, *tokens.tolist()]])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden_SD = model(ids_1S, torch.arange(ids_1S.shape[1])[None])[0, len(prompt) - 1 : -1]
    logits_SV = wide_product(hidden_SD.bfloat16(), model.output_weight.detach().bfloat16().T)
    return (
        torch.log_softmax(logits_SV / TEMPERATURE, -1)
        .gather(-1, torch.from_numpy(tokens)[:, None])[:, 0]
        .numpy()
    )


@needs_vllm
@pytest.mark.slow  # another process imports vLLM and starts it: 15 s
def test_in_bfloat16_log_probs_are_those_of_training_in_the_mean_and_a_sync_is_proved(endless):
    model = load_language_model("assets/tiny_lm")
    engine = make_engine("AsyncVLLMEngine", model=model, compute_dtype=torch.bfloat16)
    try:
        WeightSync(trained=Trained(model), acting=engine, engine=engine, ranks=OneProcess()).sync()
        requests = [request(str(i), f"{10 + i}+{73 - i}=", tokens=16) for i in range(32)]
        gaps = []
        for asked, answer in zip(requests, ask(engine, *requests), strict=True):
            gaps.append(
                np.abs(answer.log_probs - trained_log_probs(model, asked.input_ids, answer.tokens))
            )
        assert 1e-4 < np.concatenate(gaps).mean() < 3e-2
    finally:
        engine.close()


@needs_vllm
@pytest.mark.slow  # another process imports vLLM and starts it: 15 s
def test_calls_and_requests_end_in_a_sentence_when_the_process_of_vllm_dies():
    engine = make_engine("AsyncVLLMEngine")
    try:
        [core] = [
            each
            for each in psutil.Process().children(recursive=True)
            if "EngineCore" in each.name()
        ]
        core.suspend()  # it gets the call, and never answers
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(engine.replace_weights, iter(()), version=1)
            time.sleep(0.5)
            assert not call.done()
            core.kill()
            with pytest.raises(RunFailed, match="vLLM's process died"):
                call.result(60)
        with pytest.raises(RunFailed, match="vLLM's process died"):
            ask(engine, REQUESTS[0])
    finally:
        engine.close()


@needs_vllm
@pytest.mark.slow  # another process imports vLLM and starts it: 15 s
def test_vllm_in_a_separate_process_agrees_takes_weights_and_is_interrupted(endless):
    engine = make_engine("AsyncVLLMEngine", longest_text=110)
    try:
        assert engine.longest == 110  # of the model's 128
        resident = max(each.memory_info().rss for each in psutil.Process().children())
        assert engine.take_memory()["vllm_host_peak"] == pytest.approx(resident, rel=0.3)
        assert knocked_at(ports(*psutil.Process().children(recursive=True))) == {
            ("127.0.0.1", False)
        }
        with pytest.raises(ConfigError, match="limit is 110"):
            ask(engine, request("a", "x" * 10, tokens=101))
        assert gap(engine, *REQUESTS) < 1e-5
        train(engine.model, seed=1)
        WeightSync(
            trained=Trained(engine.model), acting=engine, engine=engine, ranks=OneProcess()
        ).sync()
        assert gap(engine, *REQUESTS) < 1e-5

        async def scenario():
            running = asyncio.create_task(engine.agenerate(request("a", "x", tokens=100)))
            while not any(continuation.tokens for continuation in list(engine.running.values())):
                await asyncio.sleep(0.01)
            engine.interrupt()
            return await running

        partial = asyncio.run(scenario())
        assert partial.finish_reason == "abort"
        assert 0 < len(partial.tokens) < 100
        require_two_versions(engine, asyncio.run(replaced_under_way(engine, wait_s=0.001)))
        replace(engine, change=0.0)
        ask(engine, REQUESTS[0])
        replace(engine, change=0.01)
        with pytest.raises(InvariantError, match=OTHERWISE):
            engine.verification.result(60)
        with pytest.raises(InvariantError, match=OTHERWISE):
            ask(engine, REQUESTS[0])
    finally:
        engine.close()
        engine.close()


def test_without_vllm_the_install_command_is_printed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="make vllm"):
        packages.require_vllm()


def test_the_module_of_the_engine_does_not_import_vllm():
    code = "import sys, siirl.engine.rollout.vllm.vllm_engine; sys.exit('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@needs_vllm
@pytest.mark.slow  # another process imports vLLM and starts it: 15 s
def test_a_task_that_ignores_its_cancellation_does_not_hold_the_close():
    engine = make_engine("AsyncVLLMEngine")

    async def ignore_cancellation():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    asyncio.run_coroutine_threadsafe(ignore_cancellation(), engine.loop)
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
