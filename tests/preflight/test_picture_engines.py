"""Engines that do not pass pictures are refused before their packages and servers are looked for."""

import importlib.util
from pathlib import Path

import pytest

from siirl.errors import ConfigError, MissingAssetError
from siirl.params import picture_models
from siirl.params.parser import parse_config
from siirl.params.picture_models import check_engine_shows_pictures, takes_pictures
from siirl.preflight.early_checks import check_early

JOB = ("env=math", "pipeline=grpo", "cluster=local")
NO_SERVER = "actor_rollout_ref.rollout.server.urls=['http://127.0.0.1:9']"


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        check_early(parse_config([*JOB, *overrides]))
    return str(refused.value)


@pytest.mark.parametrize("engine", [("rollout=vllm",), ("rollout=server", NO_SERVER)])
def test_pictures_are_the_first_obstacle_without_a_package_and_without_a_server(
    engine: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    name = engine[0].removeprefix("rollout=")
    assert refusal("model=tiny_vlm", *engine) == (
        f"actor_rollout_ref.rollout.name={name} does not pass pictures to the model, but "
        "actor_rollout_ref.model.path=assets/tiny_vlm is a vision-language model: set rollout=hf."
    )


def test_a_model_of_words_still_needs_the_package_and_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "make vllm" in refusal("model=tiny_lm", "rollout=vllm")
    assert "127.0.0.1:9" in refusal("model=tiny_lm", "rollout=server", NO_SERVER)


def test_a_model_of_the_hub_is_known_by_its_config_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "qwen2_5_vl"}')
    asked = []

    def copy(place, *, key):
        asked.append((place.repository, place.path))
        return config, place

    monkeypatch.setattr(picture_models, "local_copy", copy)
    job = parse_config([*JOB, "model=causal_lm", "actor_rollout_ref.model.path=owner/seeing"])
    check_engine_shows_pictures(job.actor_rollout_ref)
    assert asked == []
    job.actor_rollout_ref.rollout.name = "vllm"
    with pytest.raises(ConfigError, match=r"model\.path=owner/seeing is a vision-language model"):
        check_engine_shows_pictures(job.actor_rollout_ref)
    assert asked == [("owner/seeing", "config.json")]


def test_what_cannot_be_read_is_left_to_the_checks_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(place, *, key):
        raise MissingAssetError("no answer")

    monkeypatch.setattr(picture_models, "local_copy", unreachable)
    (tmp_path / "config.json").write_text("[]")
    assert not any(map(takes_pictures, ["owner/model", "./nowhere", str(tmp_path)]))
