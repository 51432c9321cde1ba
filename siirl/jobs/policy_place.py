"""Finds the policy that a path names: a policy folder, a checkpoint, or a run folder."""

from pathlib import Path
from typing import NamedTuple

from siirl.dag_worker.manifest import read_manifest, resolve_checkpoint
from siirl.errors import CheckpointError
from siirl.reporting.agent_folders import run_of_weights
from siirl.reporting.run_folder import CONFIG_FILE


class Place(NamedTuple):
    """A policy and where it comes from."""

    policy: Path
    """Its folder."""
    config_file: Path | None
    """Configuration of its run; None for a policy folder by itself."""
    group: int | None = None
    """Agent group that the folder names; None: the run's lowest, or its only one."""


def locate(checkpoint: Path) -> Place:
    """The policy that `checkpoint` names: a policy folder, perhaps of an agent group (`actor_1`), a
    checkpoint, or a run, whose newest checkpoint counts.

    Raises:
        CheckpointError: The path is not a policy folder, checkpoint or run folder, or is damaged.
    """
    if (checkpoint / "config.json").is_file():
        run, group = run_of_weights(checkpoint)
        return Place(checkpoint, None if group is None else run / CONFIG_FILE, group)
    if not checkpoint.is_dir():
        raise CheckpointError(
            f"checkpoint={checkpoint}: the folder does not exist. Give a policy folder, a "
            "checkpoint, or a run folder."
        )
    folder = resolve_checkpoint(checkpoint)
    read_manifest(folder)
    config_file = folder.parent.parent / CONFIG_FILE
    return Place(folder / "actor", config_file if config_file.is_file() else None)
