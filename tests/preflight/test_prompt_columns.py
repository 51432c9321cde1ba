"""A node without a source gets the prompts: it may require what they have, and nothing else."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tensordict import TensorDict

from siirl.errors import ConfigError
from siirl.execution.dag import Pipeline, TaskGraph, load_workflow_file
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import require_configured_columns
from siirl.preflight.prompt_columns import prompt_column_problems

MATH = ("env=math", "pipeline=grpo")
FILES = "data.train_files=[train.jsonl]"


def passes(batch: TensorDict) -> TensorDict:
    return batch


def graph_of(requires: Sequence[str]) -> TaskGraph:
    """A user's function that gets the prompts, before the rollout."""
    pipeline = Pipeline("own").add_node("select", passes, requires=requires, provides=[])
    return pipeline.add_node("rollout", "siirl.dag_worker.stages:generate", ["select"]).build()


def problems(*words: str, requires: Sequence[str]) -> list[str]:
    config = parse_config([*MATH, *words])
    return [str(problem) for problem in prompt_column_problems(config, graph_of(requires))]


def test_an_update_without_dependencies_is_refused_with_the_node_that_it_needs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository / "docs" / "examples"))
    shipped = (repository / "docs" / "examples" / "own_pipeline.yaml").read_text()
    file = tmp_path / "mine.yaml"
    file.write_text(shipped.replace("ACTOR, dependencies: [calculate_advantages]", "ACTOR"))
    load_workflow_file(repository / "docs" / "examples" / "own_pipeline.yaml")
    with pytest.raises(
        ConfigError, match="Add 'calculate_advantages' to the dependencies of 'actor_train'"
    ):
        load_workflow_file(file)


def test_a_users_function_may_require_what_the_prompts_have() -> None:
    assert problems(requires=["seed", "task_name"]) == []
    assert problems(FILES, requires=["seed", "prompt_row"]) == []


def test_a_column_that_the_prompts_lack_is_refused_with_those_that_they_have() -> None:
    (found,) = problems(FILES, requires=["seed", "difficulty"])
    assert found == (
        "Node 'select' of graph 'own' gets the prompts and requires 'difficulty', but they have "
        "only index, prompt_row, seed, task_id, task_name, trial_id: let it depend on a node that "
        "provides it, or do not require it."
    )


def test_the_row_of_a_file_is_a_column_of_prompts_from_files_only() -> None:
    (found,) = problems(requires=["prompt_row"])
    assert "trial_id (prompt_row too, if data.train_files is set): let it depend" in found


def test_a_job_is_checked_before_its_start() -> None:
    with pytest.raises(ConfigError, match="'select' of graph 'own' gets the prompts"):
        require_configured_columns(parse_config(MATH), graph_of(["difficulty"]))
