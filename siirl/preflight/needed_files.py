"""Checks the files that a run needs: policies, weights, demonstrations, checkpoints. Does not
import torch.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from siirl.dag_worker.manifest import has_checkpoint, resolve_checkpoint
from siirl.errors import CheckpointError, ConfigError, MissingAssetError, SiirlError
from siirl.files.hub_place import is_hub_id, is_only_path
from siirl.files.paths import find, why_no_file
from siirl.files.weight_files import (
    CONFIG_FILE,
    LANGUAGE_MODEL_FOLDER,
    check_safetensors,
    refuse_adapters,
    weight_files,
)
from siirl.params import sizes
from siirl.params.policies import LANGUAGE_MODEL, WEIGHTS_OF_OTHERS, no_weights
from siirl.params.references import is_reference
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.key_conditions import asks_a_model

SHIPPED_ENCODERS = {"tiny": "assets/vjepa_tiny"}
BUILT_IN_ENCODERS = ("random", "pixels")  # baselines without weights
CLASSIFIER_FOLDER = "a folder with config.json, weights and a tokenizer"
OWN_START = "null for the policy's initial weights"  # actor_rollout_ref.ref.path


def file_problems(config: SiiRLArguments) -> list[SiirlError]:
    """Errors for missing, truncated or damaged files, except those of a reward model."""
    return _found_by(_file_problems, config)


def reward_model_problems(config: SiiRLArguments) -> list[SiirlError]:
    """Errors for the files of a reward model, which training and some evaluations need."""
    return _found_by(_reward_model_problems, config)


def _found_by(
    look: Callable[[SiiRLArguments], list[SiirlError]], config: SiiRLArguments
) -> list[SiirlError]:
    try:
        return look(config)
    except OSError as error:  # a name that is too long, an unreadable folder
        return [
            ConfigError(
                f"A path of the configuration cannot be read: {error.strerror} "
                f"({str(error.filename)[:200]})."
            )
        ]


def _file_problems(config: SiiRLArguments) -> list[SiirlError]:
    model, reference = config.actor_rollout_ref.model, config.actor_rollout_ref.ref
    new = "use model=tiny_lm" if model.policy == LANGUAGE_MODEL else "null for new weights"
    if model.policy == LANGUAGE_MODEL:
        look = _language_model_folder
    elif model.policy in WEIGHTS_OF_OTHERS:
        look = functools.partial(_folder_of_others, policy=model.policy)
    else:
        look = _own_policy if is_reference(model.policy) else _policy_folder
    problems = list(look(model.path, place="actor_rollout_ref.model.path", otherwise=new))
    if sizes.needs_reference(config.actor_rollout_ref.actor, config.algorithm):
        problems += look(reference.path, place="actor_rollout_ref.ref.path", otherwise=OWN_START)
    if sizes.needs_video(config.reward) and config.reward.encoder is not None:
        problems += _encoder(config.reward.encoder)
        problems += _demonstrations(config.reward.demonstrations)
    workflow = config.dag.workflow_file
    if workflow is not None and not Path(workflow).is_file():
        found = why_no_file(Path(workflow))
        problems.append(MissingAssetError(f"dag.workflow_file={workflow}: {found}."))
    return problems


def _reward_model_problems(config: SiiRLArguments) -> list[SiirlError]:
    path = config.reward_model.path
    if path is None or not asks_a_model(config):
        return []
    if not find(path).is_dir() and not is_only_path(path):
        return []  # siirl.models.hub resolves it
    remedy = f"give {CLASSIFIER_FOLDER}, or a hub id (organisation/model)"
    return list(_model_folder(path, place="reward_model.path", remedy=remedy, also="*.bin"))


def _policy_folder(path: str | None, *, place: str, otherwise: str) -> Iterator[SiirlError]:
    remedy = (
        f"give a folder with config.json and model.safetensors, {otherwise}, or make one: "
        "siirl warm-start"
    )
    return _model_folder(path, place=place, remedy=remedy)


def _folder_of_others(
    path: str | None, *, place: str, otherwise: str, policy: str
) -> Iterator[SiirlError]:
    """Errors of a policy that siirl cannot make: only a reference may do without a folder."""
    remedy = no_weights(policy, key=place)
    return _model_folder(
        path,
        place=place,
        remedy=f"{remedy}, or to {OWN_START}" if otherwise == OWN_START else remedy,
    )


def _own_policy(path: str | None, *, place: str, otherwise: str) -> Iterator[SiirlError]:
    """Errors of a path that a user's function reads: its format is the function's."""
    if path is None:
        return
    found = find(path)
    if not found.exists():
        yield MissingAssetError(
            f"{place}={path}: there is no {found}; give what your function reads, or {otherwise}."
        )
    elif found.is_dir():
        yield from _whole(sorted(found.glob("*.safetensors")), place=place)


def _language_model_folder(path: str | None, *, place: str, otherwise: str) -> Iterator[SiirlError]:
    if path is not None and not find(path).is_dir() and is_hub_id(path):
        return iter(())  # siirl.models.hub resolves it
    remedy = f"give {LANGUAGE_MODEL_FOLDER}, a hub id (organisation/model), or {otherwise}"
    return _model_folder(path, place=place, remedy=remedy)


def _model_folder(
    path: str | None, *, place: str, remedy: str, also: str | None = None
) -> Iterator[SiirlError]:
    """Errors of a folder with a model; `also` matches files of weights of another format."""
    if path is None:
        return
    folder = find(path)
    if not folder.is_dir():
        yield MissingAssetError(f"{place}={path}: there is no folder {folder}; {remedy}.")
        return
    try:
        refuse_adapters(folder)
        weights = weight_files(folder)
    except CheckpointError as error:
        yield CheckpointError(f"{place}: {error}")
        return
    has_weights = bool(weights) or (also is not None and any(folder.glob(also)))
    if not (folder / CONFIG_FILE).is_file() or not has_weights:
        if also is None and (policy := _newest_policy(folder)) is not None:
            yield MissingAssetError(
                f"{place}={path} is the folder of a run or checkpoint; its newest policy is in "
                f"{policy}. Type: {place}={policy}"
            )
            return
        missing = CONFIG_FILE if has_weights else "*.safetensors"
        yield MissingAssetError(f"{place}={path}: there is no {missing} in {folder}; {remedy}.")
    yield from _whole(weights, place=place)


def _newest_policy(folder: Path) -> Path | None:
    """The policy folder of a checkpoint, or of a run's newest one; None for another folder."""
    try:
        policy = resolve_checkpoint(folder) / "actor"
    except CheckpointError:
        return None
    return policy if (policy / CONFIG_FILE).is_file() else None


def _whole(weights: list[Path], *, place: str) -> Iterator[SiirlError]:
    for file in weights:
        try:
            check_safetensors(file)
        except CheckpointError as error:
            yield CheckpointError(f"{place}: {error}")


def _encoder(encoder: str) -> Iterator[SiirlError]:
    if encoder in BUILT_IN_ENCODERS:
        return
    path = find(SHIPPED_ENCODERS.get(encoder, encoder))
    if encoder in SHIPPED_ENCODERS:
        weights = sorted(path.glob("*.safetensors")) if path.is_dir() else []
        if not weights:
            yield MissingAssetError(
                f"reward.encoder={encoder}: its weights are not in {path}; check out assets/ "
                "again or run python -m vjepa.train_tiny."
            )
        yield from _whole(weights, place="reward.encoder")
    elif path.is_dir() and not (path / CONFIG_FILE).is_file():
        yield MissingAssetError(
            f"reward.encoder={encoder}: there is no config.json in {path}, so it is not an encoder "
            "folder."
        )
    elif not path.exists() and not is_hub_id(encoder):
        known = ", ".join([*SHIPPED_ENCODERS, *BUILT_IN_ENCODERS])
        yield MissingAssetError(
            f"reward.encoder={encoder}: no such file or folder. Known: {known}; or a folder, a "
            ".pt file, a hub id."
        )


def _demonstrations(path: str | None) -> Iterator[SiirlError]:
    if path is not None and not find(path).exists():
        yield MissingAssetError(
            f"reward.demonstrations={path}: there is no such file; collect some with python -m "
            "siirl warm-start, or leave it out."
        )


def find_resume(trainer: TrainingArguments) -> Path | None:
    """Folder to resume from: as given, or for `auto` the newest run with a checkpoint; None for a
    new run.

    Raises:
        ConfigError: The folder holds no checkpoint.
        MissingAssetError: The folder of `trainer.resume` does not exist.
    """
    resume = trainer.resume
    if resume is None:
        return None
    if not resume.strip():
        raise ConfigError(
            "trainer.resume is empty: name a run folder, a checkpoint in it, or auto, or leave the "
            "key out for a new run."
        )
    if resume == "auto":
        runs = (Path(trainer.output_dir).expanduser() / trainer.experiment_name).glob("*/")
        # run folders are named by time
        return max(filter(has_checkpoint, runs), default=None)
    path = Path(resume).expanduser()
    if not path.is_dir():
        raise MissingAssetError(
            f"trainer.resume={resume}: there is no such folder. Give a run folder, a checkpoint "
            "in it, or auto."
        )
    if (path / "config.yaml").is_file() and not has_checkpoint(path):
        raise ConfigError(
            f"trainer.resume={resume}: this run has no checkpoint (there is no "
            "checkpoints/step_… in it)."
        )
    return path
