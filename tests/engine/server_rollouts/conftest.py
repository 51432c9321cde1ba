"""One inference server for the tests of a module, and an engine of it for each test."""

from collections.abc import Iterator

import pytest
from inference_servers import Playground, engine_of, serving
from server_episodes import model
from tiny_language_models import tokenizer

from siirl.engine.rollout.server.server_engine import ServerEngine


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Playground, str]]:
    playground = Playground(model(seed=1), tokenizer())
    with serving(playground.faults) as url:
        yield playground, url


@pytest.fixture
def playground(place: tuple[Playground, str]) -> Iterator[Playground]:
    yield place[0]
    place[0].faults.instead = {}


@pytest.fixture
def url(place: tuple[Playground, str]) -> str:
    return place[1]


@pytest.fixture
def engine(playground: Playground, url: str) -> Iterator[ServerEngine]:
    made = engine_of(url, model=model(), tokenizer=tokenizer())
    yield made
    made.close()
