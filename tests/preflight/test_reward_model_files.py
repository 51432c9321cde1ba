"""A reward model that is not there, or not whole, is refused before a run starts."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from siirl.errors import MissingAssetError
from siirl.params.parser import parse_config
from siirl.preflight.early_checks import check_before_evaluation, check_early
from siirl.preflight.needed_files import reward_model_problems

ALONE = "reward.name=model"
PART = "reward.functions=[{name:model,weight:0.5}]"
REMEDY = (
    "give a folder with config.json, weights and a tokenizer, or a hub id (organisation/model)."
)


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    folder = tmp_path / "classifier"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"score": np.zeros(4, np.float32)}, folder / "model.safetensors")
    return folder


def problems(path: str | Path, *words: str) -> list[str]:
    config = parse_config(["env=math", "pipeline=grpo", f"reward_model.path={path}", *words])
    return [str(problem) for problem in reward_model_problems(config)]


@pytest.mark.parametrize("asked", [ALONE, PART])
def test_a_missing_folder_is_refused_with_the_remedy(asked: str) -> None:
    assert problems("/no/where", asked) == [
        f"reward_model.path=/no/where: there is no folder /no/where; {REMEDY}"
    ]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_without_one_of_its_files_is_refused(classifier: Path, name: str) -> None:
    (classifier / name).unlink()
    missing = "config.json" if name == "config.json" else "*.safetensors"
    assert problems(classifier, ALONE) == [
        f"reward_model.path={classifier}: there is no {missing} in {classifier}; {REMEDY}"
    ]


def test_a_truncated_file_of_weights_is_refused(classifier: Path) -> None:
    weights = classifier / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (found,) = problems(classifier, PART)
    assert found.startswith(f"reward_model.path: {weights} (")


def test_whole_folders_are_accepted_with_weights_of_either_format(classifier: Path) -> None:
    assert problems(classifier, ALONE) == []
    (classifier / "model.safetensors").rename(classifier / "pytorch_model.bin")
    assert problems(classifier, ALONE) == []


@pytest.mark.parametrize("name", ["organisation/model", "model"])
def test_a_hub_id_is_left_to_the_hub(name: str) -> None:
    assert problems(name, ALONE) == []


def test_a_path_that_no_part_of_the_reward_asks_for_is_not_looked_at() -> None:
    assert problems("/no/where") == []


def test_an_evaluation_looks_at_the_reward_model_only_if_it_grades_episodes() -> None:
    words = ["env=math", "pipeline=grpo", ALONE, "reward_model.path=/no/where"]
    check_before_evaluation(parse_config(words))
    with pytest.raises(MissingAssetError, match=r"reward_model.path=/no/where: there is no folder"):
        check_before_evaluation(parse_config([*words, "env.kwargs.ungraded=true"]))


def test_each_agents_reward_model_is_looked_at() -> None:
    agents = "agents={0:{},1:{reward_model.path:/no/where,reward.name:model}}"
    words = ["env=math", "pipeline=grpo", "cluster.mode=local", agents]
    with pytest.raises(MissingAssetError, match=r"reward_model.path=/no/where: there is no folder"):
        check_early(parse_config(words))
