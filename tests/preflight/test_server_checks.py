"""A job's inference servers are queried before anything starts; the plan names them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response

from envs.text import text_spec
from siirl.params.parser import parse_config
from siirl.preflight.make_plan import make_plan
from siirl.preflight.plan import Machine
from siirl.preflight.plan_text import render
from siirl.preflight.server_checks import server_problems
from tests.engine.inference_servers import Faults, serving
from tests.preflight.plans import graph, one_line

MODELS, RPC = "/v1/models", "/collective_rpc"
SOUND = {
    MODELS: JSONResponse({"data": [{"id": "policy", "max_model_len": 4096}]}),
    RPC: JSONResponse({"results": [{"protocol": 2, "siirl": "0.1.0", "dtype": "float32"}]}),
}


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Faults, str]]:
    faults = Faults(Starlette())
    with serving(faults) as url:
        yield faults, url


def problems(url: str, *words: str) -> list[str]:
    job = ["env=math", "pipeline=grpo", "rollout=server"]
    urls = f"actor_rollout_ref.rollout.server.urls=['{url}']"
    config = parse_config([*job, urls, *words])
    policy = config.actor_rollout_ref
    found = server_problems(policy.rollout, policy.model, config.data, config.trainer)
    return [str(error) for error in found]


def test_a_sound_server_has_no_problem(place: tuple[Faults, str]) -> None:
    faults, url = place
    faults.instead = dict(SOUND)
    assert problems(f"{url}/") == []


@pytest.mark.parametrize(
    ("instead", "words", "expected"),
    [
        ({MODELS: Response(status_code=401)}, [], "HTTP 401: name the file"),
        ({RPC: Response(status_code=404)}, [], "needs VLLM_SERVER_DEV_MODE=1"),
        ({}, ["data.max_response_length=5000"], "is limited to 4096 tokens"),
        ({}, ["actor_rollout_ref.model.dtype=bfloat16"], "start it with --dtype bfloat16"),
    ],
)
def test_a_server_that_cannot_serve_the_job_is_refused_before_it_starts(
    place: tuple[Faults, str], instead: dict[str, Any], words: list[str], expected: str
) -> None:
    faults, url = place
    faults.instead = {**SOUND, **instead}
    [problem] = problems(url, *words)
    assert problem.startswith("actor_rollout_ref.rollout.server.urls: The inference server at")
    assert expected in problem


def test_a_server_that_does_not_answer_is_refused() -> None:
    with serving(Starlette()) as url:
        pass
    [problem] = problems(url)
    assert f"No inference server answers at {url}" in problem
    assert problem.endswith("start it, or correct actor_rollout_ref.rollout.server.urls.")


def test_the_plan_names_the_servers_and_the_transport_of_the_weights(tmp_path: Path) -> None:
    words = [
        *("env=math", "pipeline=grpo", "rollout=server", "trainer.n_gpus_per_node=2"),
        "actor_rollout_ref.rollout.server.urls=['http://a:1','http://b:1']",
        f"actor_rollout_ref.rollout.server.weights_folder={tmp_path}",
    ]
    spec = text_spec(name="math", tasks=["sums-2"], max_turns=1, max_action_characters=100)
    machine = Machine(free_memory_bytes=1e12, cores=2)
    plan = make_plan(parse_config(words), graph(), spec, machine=machine, loss="vanilla")
    text = one_line(render(plan))
    assert "servers http://a:1, http://b:1 generate, one per rank; new weights go through" in text
    words[-1] = "actor_rollout_ref.rollout.server.weights=collective"
    plan = make_plan(parse_config(words), graph(), spec, machine=machine, loss="vanilla")
    assert "new weights go by a collective" in one_line(render(plan))
