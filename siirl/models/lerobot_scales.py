"""Scales of state and actions, from the processors of LeRobot 0.4 and later.

policy_preprocessor.json and policy_postprocessor.json name the steps; the safetensors beside them
hold the statistics. Left out: the steps themselves; the policy performs them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from siirl.errors import CheckpointError, MissingAssetError
from siirl.files.documents import read_object
from siirl.models.flow_vla import Scale
from siirl.models.stored_tensors import StoredTensors

STATE, ACTION = "observation.state", "action"
ProcessorSteps = Mapping[str, Sequence[str]]
"""Maps the file of a processor to the steps that a policy performs itself."""
SWITCHED = ("relative_actions_processor", "absolute_actions_processor")
"""Steps that do nothing unless they are enabled."""


def read_scale(folder: Path, name: str, *, size: int, steps: ProcessorSteps, base: str) -> Scale:
    """The processors' scaling of a feature (lerobot/processor/normalize_processor.py).

    Args:
        folder: Folder of the processors.
        name: `STATE` or `ACTION`.
        size: Numbers of the feature.
        steps: Names of the processor steps that the policy performs itself.
        base: A published policy without statistics, for the message.

    Raises:
        MissingAssetError: A missing file.
        CheckpointError: A damaged file, an unsupported step, no statistics, or statistics that are
            not finite.
    """
    file = "policy_preprocessor.json" if name == STATE else "policy_postprocessor.json"
    step = "normalizer_processor" if name == STATE else "unnormalizer_processor"
    settings, stored = _statistics(folder, file=file, step=step, known=steps[file])
    mode = settings.get("norm_map", {}).get("STATE" if name == STATE else "ACTION", "IDENTITY")
    if mode == "IDENTITY":
        return Scale(np.zeros(size), np.ones(size), np.ones(size))
    pairs = {
        "MEAN_STD": ("mean", "std"),
        "MIN_MAX": ("min", "max"),
        "QUANTILES": ("q01", "q99"),
        "QUANTILE10": ("q10", "q90"),
    }
    if mode not in pairs:
        raise CheckpointError(f"{folder / file}: {name} is scaled by the unknown mode {mode!r}.")
    names = [f"{name}.{part}" for part in pairs[mode]]
    shapes = stored.shapes()
    if any(shapes.get(each) != (size,) for each in names):
        raise CheckpointError(
            f"{folder} has no {' and '.join(names)} of {size} numbers among its statistics "
            f"({', '.join(sorted(shapes)) or 'none'}): it was not trained on a data set with "
            "these features. Fine-tune it first (lerobot-train --policy.path=...); "
            f"{base} is only a starting point for that."
        )
    first, second = (stored.whole(each).double().numpy() for each in names)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise CheckpointError(
            f"{folder}: {' or '.join(names)} has a number that is not finite among the statistics: "
            "compute them again on a data set without NaN, and fine-tune again."
        )
    eps = float(settings.get("eps", 1e-8))
    if mode == "MEAN_STD":
        return Scale(first, second, second + eps)
    half = np.where(second == first, eps, second - first) / 2
    return Scale(first + half, half, half)


def _statistics(
    folder: Path, *, file: str, step: str, known: Sequence[str]
) -> tuple[dict[str, Any], StoredTensors]:
    """Settings and numbers of a processor's step that scales."""
    place = folder / file
    if not place.is_file():
        raise MissingAssetError(
            f"No {file} in {folder}. If LeRobot before 0.4 wrote the folder, convert it: python -m "
            f"lerobot.processor.migrate_policy_normalization --pretrained-path {folder}"
        )
    content = read_object(place, remedy="Download it again.")
    steps = content.get("steps")
    if not isinstance(steps, list) or not all(isinstance(each, dict) for each in steps):
        raise CheckpointError(f"{place} has no list of steps: download it again.")
    strange = [name for each in steps if (name := _does(each)) not in (None, *known)]
    if strange:
        raise CheckpointError(
            f"{place} has the unsupported step {strange[0]!r}. Known: {', '.join(known)}."
        )
    for each in steps:
        if each["registry_name"] == step and isinstance(each.get("config"), dict):
            state = each.get("state_file")
            files = [] if state is None else [folder / Path(str(state)).name]
            if missing := [one for one in files if not one.is_file()]:
                raise MissingAssetError(f"No {missing[0]}, which {place} names: download it.")
            return each["config"], StoredTensors(files)
    raise CheckpointError(f"{place} has no {step}: actions and state would not be scaled.")


def _does(step: Mapping[str, Any]) -> Any:
    """The name of a step; None for one that is switched off."""
    name, settings = step.get("registry_name"), step.get("config")
    if name in SWITCHED and isinstance(settings, dict) and settings.get("enabled") is False:
        return None
    return name
