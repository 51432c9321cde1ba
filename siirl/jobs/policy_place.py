"""Finds the policy that a path names: a policy folder, a checkpoint, or a run folder."""

from pathlib import Path

from siirl.dag_worker.manifest import read_manifest, resolve_checkpoint
from siirl.errors import CheckpointError
from siirl.reporting.run_folder import CONFIG_FILE


def locate(checkpoint: Path) -> tuple[Path, Path | None]:
    """Policy folder of `checkpoint`, and the configuration of its run if it is part of one.

    Raises:
        CheckpointError: The path is no policy folder, checkpoint or run folder, or it is damaged.
    """
    if (checkpoint / "config.json").is_file():
        return checkpoint, None
    if not checkpoint.is_dir():
        raise CheckpointError(
            f"checkpoint={checkpoint}: the folder does not exist. Give a policy folder, a "
            "checkpoint, or a run folder."
        )
    folder = resolve_checkpoint(checkpoint)
    read_manifest(folder)
    config_file = folder.parent.parent / CONFIG_FILE
    return folder / "actor", config_file if config_file.is_file() else None
