"""Folders of an agent group are known by their names, inside of a run's folder only."""

from pathlib import Path

import pytest

from siirl.errors import MissingAssetError
from siirl.jobs.policy_place import locate
from siirl.reporting.agent_folders import folders_of_agents
from siirl.reporting.report_page import read_run
from siirl.reporting.run_folder import CONFIG_FILE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose agent 1 has weights, and an empty folder of recordings."""
    for folder in ("checkpoints/step_00000002/actor_1", "agent_1/rollouts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "checkpoints/step_00000002/actor_1/model.safetensors").touch()
    (tmp_path / CONFIG_FILE).write_text("")
    return tmp_path


def test_an_agents_weights_bring_the_configuration_of_its_group(run: Path) -> None:
    policy = run / "checkpoints/step_00000002/actor_1"
    assert locate(policy) == (policy, run / CONFIG_FILE, 1)


def test_weights_outside_of_a_run_bring_no_configuration(run: Path) -> None:
    (run / CONFIG_FILE).unlink()
    policy = run / "checkpoints/step_00000002/actor_1"
    assert locate(policy) == (policy, None, None)


def test_a_report_of_an_agents_folder_names_the_run_that_has_its_metrics(run: Path) -> None:
    with pytest.raises(MissingAssetError, match=f"{run} has the metrics of all its agents"):
        read_run(run / "agent_1")


def test_agents_without_recordings_are_not_named(run: Path) -> None:
    assert folders_of_agents(run, "rollouts") == []
    (run / "agent_1/rollouts/step_000001.jsonl").write_text("{}")
    assert folders_of_agents(run, "rollouts") == [run / "agent_1"]
