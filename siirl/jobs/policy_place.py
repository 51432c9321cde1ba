"""Finds the policy that a path names, and the configuration to run it with."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from siirl.dag_worker.manifest import read_manifest, resolve_checkpoint
from siirl.errors import CheckpointError
from siirl.files.documents import read_object
from siirl.params import SiiRLArguments
from siirl.params.config_groups import policy_choice
from siirl.params.key_names import MODEL_POLICY
from siirl.params.parser import parse_first
from siirl.params.policies import POLICIES
from siirl.reporting.agent_folders import run_of_weights
from siirl.reporting.run_folder import CONFIG_FILE


class LocatedPolicy(NamedTuple):
    """A policy and where it comes from."""

    policy: Path
    """Its folder."""
    config_file: Path | None
    """Configuration of its run; None for a policy folder by itself."""
    group: int | None = None
    """Agent group of the folder's name; None: the run's lowest, or its only one."""


def locate(checkpoint: Path) -> LocatedPolicy:
    """The policy that `checkpoint` names: a policy folder, possibly of an agent group (`actor_1`);
    a checkpoint; or a run (its newest checkpoint). The folder of a user's policy has weights only.

    Raises:
        CheckpointError: The path is not a policy folder, checkpoint or run folder, or is damaged.
    """
    if any(checkpoint.glob("*.safetensors")):
        run, group = run_of_weights(checkpoint)
        return LocatedPolicy(checkpoint, None if group is None else run / CONFIG_FILE, group)
    if (checkpoint / "config.json").is_file():
        raise CheckpointError(
            f"{checkpoint} has config.json, but no weights (*.safetensors): copy the policy folder "
            "again, or give a checkpoint or run folder, which siirl train writes."
        )
    if not checkpoint.is_dir():
        found = "this is a file" if checkpoint.exists() else "the folder does not exist"
        raise CheckpointError(
            f"{checkpoint}: {found}. Give a policy folder, a checkpoint, or a run folder."
        )
    folder = resolve_checkpoint(checkpoint)
    read_manifest(folder)
    config_file = folder.parent.parent / CONFIG_FILE
    return LocatedPolicy(folder / "actor", config_file if config_file.is_file() else None)


def configuration(
    checkpoint: Path, overrides: Sequence[str], *, given: Sequence[str], pipeline: str
) -> SiiRLArguments:
    """Configuration of a job that runs a policy without training it.

    Args:
        checkpoint: Policy folder, checkpoint or run folder; a run's configuration is the default.
        overrides: Configuration words of the command line; unless they choose a policy, it is the
            one that config.json names (`env=` has a default of its own).
        given: Words before them.
        pipeline: Pipeline for a policy folder without a run, unless `overrides` choose one.

    Raises:
        CheckpointError: The path is not a policy folder, checkpoint or run folder, or it is
            damaged.
    """
    located = locate(checkpoint)
    words = [f"actor_rollout_ref.model.path={quoted(located.policy)}", *given]
    if located.config_file is None and not any(word.startswith("pipeline=") for word in overrides):
        words.append(f"pipeline={pipeline}")

    def parsed(*more: str) -> SiiRLArguments:
        return parse_first(
            [*words, *more, *overrides], config_file=located.config_file, group=located.group
        )

    config = parsed()
    chosen = config.actor_rollout_ref.model.policy
    if chosen not in POLICIES:
        return config
    own = _own_policy(located.policy, overrides)
    return config if own in (None, chosen) else parsed(policy_choice(own))


def _own_policy(folder: Path, overrides: Sequence[str]) -> str | None:
    """The policy that a folder's config.json names; None if it names none, or `overrides` do."""
    file = folder / "config.json"
    if any(word.startswith(("model=", f"{MODEL_POLICY}=")) for word in overrides):
        return None
    if not file.is_file():
        return None
    name = read_object(file, remedy="Copy or make the folder again.").get("policy")
    return name if isinstance(name, str) and name in POLICIES else None


def quoted(path: Path) -> str:
    """A path as a command-line value; it may have any characters."""
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"
