"""New weights at an inference server: transports, verification, servers that do not take them."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import torch
from inference_servers import Playground, engine_of, serving
from knocking import knocked_at, ports
from server_episodes import LONG, REQUESTS, ask, failure, gap, model, sync
from starlette.responses import JSONResponse
from tiny_language_models import tokenizer
from tiny_policies import Trained, train

from siirl.engine.rollout.generation import GenerationResponse
from siirl.engine.rollout.server.server_engine import ServerEngine
from siirl.engine.rollout.server.weight_group import GroupRoute
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.weight_sync import WeightSync
from siirl.errors import InvariantError


def test_new_weights_act_and_their_log_probs_are_verified(engine: ServerEngine) -> None:
    train(engine.model, seed=1)
    assert gap(engine, *REQUESTS) > 0.01
    sync(engine)
    assert gap(engine, *REQUESTS) < 1e-5
    assert set(ask(engine, REQUESTS[0])[0].versions.tolist()) == {Trained.steps}


def test_a_restarted_server_or_one_that_is_away_has_no_weights(
    engine: ServerEngine, playground: Playground
) -> None:
    sync(engine)
    assert engine.has_weights()
    playground.server.worker.label = ""  # what a new process has
    assert not engine.has_weights()
    sync(engine)
    assert engine.has_weights()
    engine.gone = "no answer"
    assert not engine.has_weights()


def test_new_weights_cut_a_request_that_runs(engine: ServerEngine, playground: Playground) -> None:
    async def scenario() -> GenerationResponse:
        running = asyncio.create_task(engine.agenerate(LONG))
        while not playground.server.engine.rows.count:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(sync, engine)
        return await running

    cut = asyncio.run(scenario())
    assert cut.finish_reason == "abort"
    assert len(cut.tokens) < LONG.max_new_tokens


def test_buckets_smaller_than_the_weights_transfer_all_of_them(
    playground: Playground, url: str
) -> None:
    engine = engine_of(url, model=model(), tokenizer=tokenizer(), bucket_bytes=1000)
    try:
        train(engine.model, seed=2)
        sync(engine)
        assert gap(engine, *REQUESTS) < 1e-5
        assert not list(engine.route.folder.iterdir())
    finally:
        engine.close()


def test_weights_go_by_a_collective(playground: Playground, url: str) -> None:
    route = GroupRoute(timeout_s=600.0)
    engine = engine_of(url, model=model(), tokenizer=tokenizer(), route=route, bucket_bytes=1000)
    try:
        assert gap(engine, *REQUESTS) < 1e-5
        train(engine.model, seed=4)
        sync(engine)
        assert gap(engine, *REQUESTS) < 1e-5
    finally:
        engine.close()


@pytest.mark.slow  # an attempt at a deaf port times out: three seconds
def test_ports_of_the_collective_are_on_one_address_and_accept_no_one_else(
    engine: ServerEngine,
) -> None:
    before = ports(psutil.Process())
    with GroupRoute(timeout_s=600.0).open(engine.link):
        assert knocked_at(ports(psutil.Process()) - before) == {("127.0.0.1", False)}


def test_a_server_that_does_not_join_the_collective_is_reported(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(host: str, port: str, ranks: str) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(playground.server.worker, "siirl_join_group", refused)
    monkeypatch.setattr("siirl.engine.rollout.server.weight_group.JOIN_WITHIN_S", 0.3)
    engine.route = GroupRoute(timeout_s=0.3)
    sync(engine)
    sentence = failure(engine)
    assert "no route to host" in sentence
    assert "or set weights=folder" in sentence


def test_a_worker_that_fails_ends_the_collective_at_once(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(size: str, packed: str) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(playground.server.worker, "siirl_take_broadcast", full)
    engine.route = GroupRoute(timeout_s=1000.0)
    sync(engine)
    assert "out of memory" in failure(engine)


def test_a_server_that_did_not_take_weights_acts_again_after_the_next_sync(
    engine: ServerEngine, playground: Playground
) -> None:
    seen = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in engine.model.state_dict().items():
            seen.append(name)
            yield name, weight

    broken = JSONResponse({"error": {"message": "out of memory"}}, status_code=500)
    playground.faults.instead = {"/pause": broken}
    assert engine.take_weights(weights()) is None
    assert seen == list(engine.model.state_dict())  # the other ranks gather them
    assert "out of memory" in failure(engine)
    engine.rest()
    assert "out of memory" in failure(engine)  # also in the next rollout
    playground.faults.instead = {}
    sync(engine)
    assert gap(engine, *REQUESTS) < 1e-5


class OtherRankRefused(OneProcess):
    """Two ranks, the second of which has a server that did not take weights."""

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, value if isinstance(value, bool) else None]


def test_a_rank_whose_server_did_not_take_weights_does_not_stop_the_others(
    engine: ServerEngine,
) -> None:
    train(engine.model, seed=6)
    weights = WeightSync(
        trained=Trained(engine.model),  # type: ignore[arg-type]
        acting=engine,
        engine=engine,
        ranks=OtherRankRefused(),
    )
    weights.sync()
    assert weights.version == Trained.steps
    assert gap(engine, *REQUESTS) < 1e-5


def test_a_sync_waits_for_a_server_that_is_being_restarted() -> None:
    playground = Playground(model(), tokenizer())
    with serving(playground.faults) as url:
        engine = engine_of(url, model=model(), tokenizer=tokenizer(), restart_s=60.0)
    with ThreadPoolExecutor() as pool:
        syncing = pool.submit(sync, engine)
        with serving(playground.faults, port=int(url.rpartition(":")[2])):
            syncing.result()
            assert gap(engine, *REQUESTS) < 1e-5
            engine.close()


def test_weights_that_arrive_without_effect_are_reported(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = playground.server.worker
    other = model(seed=9)
    monkeypatch.setattr(worker, "model", other)  # takes the weights; the engine has another
    monkeypatch.setattr(playground.server, "_scored", _scores_of_another_model)
    train(engine.model, seed=3)
    with pytest.raises(InvariantError, match="acting weights are not the trained ones"):
        sync(engine)


def _scores_of_another_model(ids: list[int]) -> dict[str, Any]:
    log_probs = [None, *[-3.0] * (len(ids) - 1)]
    return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": log_probs}}]}


def test_a_bit_that_changes_on_the_way_is_noticed(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = playground.server.worker
    monkeypatch.setattr(worker, "siirl_finish_weights", lambda: worker.digest.value ^ 1)
    with pytest.raises(InvariantError, match="acting weights are not the trained ones"):
        sync(engine)


@pytest.mark.parametrize("wrong", [None, "seven", 1.5])
def test_a_checksum_that_is_not_a_whole_number_fails_the_next_episodes(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    monkeypatch.setattr(playground.server.worker, "siirl_finish_weights", lambda: wrong)
    sync(engine)
    assert "instead of the checksums of its workers" in failure(engine)


def test_a_server_that_cannot_read_the_folder_is_reported(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(file: str, packed: str) -> None:
        raise FileNotFoundError(f"No such file: {file}")

    monkeypatch.setattr(playground.server.worker, "siirl_take_file", elsewhere)
    sync(engine)
    sentence = failure(engine)
    assert "No such file" in sentence
    assert "must mount the folder at the same path" in sentence


def test_a_full_disk_is_reported_with_the_remedies(playground: Playground, url: str) -> None:
    engine = engine_of(url, model=model(), tokenizer=tokenizer())
    try:
        engine.route.folder = engine.route.folder / "missing"
        sync(engine)
        assert "update_weights_bucket_megabytes" in failure(engine)
    finally:
        engine.close()


def test_a_restarted_server_fails_its_episodes_and_trains_nothing(
    engine: ServerEngine, playground: Playground
) -> None:
    sync(engine)
    ask(engine, REQUESTS[0])
    playground.server.worker.label = ""  # what a new process has
    playground.server.worker.siirl_set_temperature("1.0")
    playground.server.engine = playground.server._engine()
    with pytest.raises(InvariantError, match="This rollout was not trained on"):
        engine.rest()
    engine = engine_again(engine)
    assert "it was restarted, or another run uses it" in failure(engine)
    assert "it was restarted" in failure(engine)
    engine.rest()
    sync(engine)
    assert gap(engine, *REQUESTS) < 1e-5


def engine_again(engine: ServerEngine) -> ServerEngine:
    """The engine at the beginning of its next rollout."""
    engine._verification = None
    return engine


def test_a_second_run_at_the_same_server_is_noticed(engine: ServerEngine, url: str) -> None:
    ask(engine, REQUESTS[0])
    other = engine_of(url, model=model(seed=5), tokenizer=tokenizer())
    other.close()
    with pytest.raises(InvariantError, match="another run uses it"):
        engine.rest()
