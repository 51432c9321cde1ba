"""vLLM's real server on a CPU, as docs/inference_server.md starts it: log-probs, new weights and
their check, interruption, and a restart.
"""

import asyncio
import importlib.util
from pathlib import Path

import pytest
from inference_servers import engine_of
from server_episodes import REQUESTS, ask, failure, gap, sync
from tiny_language_models import request, tokenizer
from tiny_policies import train

from benchmarks.vllm_server import free_port, vllm_server
from siirl.engine.rollout.server.weight_group import GroupRoute
from siirl.errors import InvariantError
from siirl.models.language_model import load_language_model

pytestmark = [
    pytest.mark.slow,  # another process imports vLLM and starts it: half a minute
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"
    ),
]
MODEL = "assets/tiny_lm"


def test_a_real_server_acts_with_the_trained_weights_and_forgets_them_when_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    model = load_language_model(MODEL)
    with vllm_server(MODEL, port=port, log=tmp_path / "first.log", longest=1024) as url:
        engine = engine_of(
            url, model=model, tokenizer=tokenizer(), deadline_s=600.0, bucket_bytes=1 << 20
        )
        assert gap(engine, *REQUESTS) < 1e-4
        assert gap(engine, request("a", "1+2=", tokens=8, greedy=True)) < 1e-4
        free = ask(engine, *(request(str(i), "1+2=", tokens=40, seed=(i,)) for i in range(8)))
        seed, token = next(
            (i, token)
            for i, response in enumerate(free)
            for token in response.tokens.tolist()
            if 32 < token < 127
        )
        string = tokenizer().decode([token])
        asked = request("a", "1+2=", tokens=40, seed=(seed,), stop=(string,))
        stopped = ask(engine, asked)[0]
        assert stopped.finish_reason == "stop"
        assert stopped.tokens.tolist().index(token) == len(stopped.tokens) - 1
        train(model, seed=1)
        assert gap(engine, *REQUESTS) > 0.01
        sync(engine)
        assert gap(engine, *REQUESTS) < 1e-4
        assert set(ask(engine, REQUESTS[0])[0].versions.tolist()) == {3}
        engine.route = GroupRoute(timeout_s=600.0)
        train(model, seed=2)
        sync(engine)
        assert gap(engine, *REQUESTS) < 1e-4
        monkeypatch.setattr(tokenizer(), "stop_ids", frozenset())

        async def interrupted():
            running = asyncio.create_task(engine.agenerate(request("a", "x", tokens=1000)))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(engine.interrupt)
            return await running

        partial = asyncio.run(interrupted())
        assert partial.finish_reason == "abort"
        assert len(partial.tokens) == len(partial.log_probs) < 1000
        engine.rest()
        assert gap(engine, *REQUESTS) < 1e-4
    with vllm_server(MODEL, port=port, log=tmp_path / "second.log", longest=1024):
        with pytest.raises(InvariantError, match="it was restarted"):
            engine.rest()
        engine._verification = None
        assert "it was restarted" in failure(engine)
        engine.rest()
        sync(engine)
        assert gap(engine, *REQUESTS) < 1e-4
        engine.close()
