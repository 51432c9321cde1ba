"""Folders of tiny policies: makes a policy for an environment, loads and describes it, and checks
that it fits.

Values of its config.json are checked before a module of their size is built.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from envs.base import EnvSpec
from siirl.errors import CheckpointError, ConfigError, MissingAssetError, UnknownNameError
from siirl.files.documents import is_count, read_object
from siirl.files.weight_files import CONFIG_FILE, WEIGHTS_FILE, weight_files
from siirl.models.action_tokenizer import Bounds
from siirl.models.tiny_backbone import TinyConfig, TinyPolicy
from siirl.models.weights import load_weights, plan_weights
from siirl.params.config_groups import policy_choice
from siirl.params.policies import POLICIES
from siirl.params.references import check_options

MOST_WORDS = 4096  # of an instruction; those of robots' tasks have a dozen
Tiny = TypeVar("Tiny", bound=TinyPolicy)


def stored_sizes(values: Mapping[str, Any], *, other: Mapping[str, int]) -> dict[str, Any]:
    """The fields of `TinyConfig` in a config.json, checked.

    Args:
        values: The object.
        other: Further counts and their minimum.

    Raises KeyError, TypeError or ValueError for values that do not describe a tiny policy.
    """
    names = [field.name for field in dataclasses.fields(TinyConfig)]
    shape = values["image_shape"]
    # the only size that no weight's shape confirms
    if values["instruction_length"] > MOST_WORDS:
        raise ValueError(
            f"instruction_length={values['instruction_length']} is more than {MOST_WORDS} words."
        )
    least = {"proprioception_size": 0, **other}
    counts = {
        **{name: values[name] for name in names if name != "image_shape"},
        **{name: values[name] for name in other},
        **{f"image_shape[{place}]": size for place, size in enumerate(shape or ())},
    }
    for name, size in counts.items():
        if not is_count(size, least=least.get(name, 1)):
            raise ValueError(
                f"{name}={size!r} must be a whole number of at least {least.get(name, 1)}."
            )
    fields = {name: values[name] for name in names}
    return {**fields, "image_shape": tuple(shape) if shape else None}


def stored_bounds(coding: Mapping[str, Any]) -> Bounds:
    """`low` and `high` of an action coding in a config.json, checked.

    The bins of tokens need bounds; numbers do not.
    """
    low = tuple(coding["low"])
    high = tuple(coding["high"])
    may_be = (lambda bound: not math.isnan(bound)) if "bins" not in coding else math.isfinite
    if len(low) != len(high) or not all(
        type(bound) in (int, float) and may_be(bound) for bound in (*low, *high)
    ):
        raise ValueError(
            f"low={low} and high={high} must have equally many numbers, finite if there are bins."
        )
    return {"low": low, "high": high}


def make_tiny(
    kind: type[Tiny], spec: EnvSpec, path: str | None, *, options: Mapping[str, Any]
) -> Tiny:
    """The policy of a folder, or a new one for the environment (`siirl.params.policies`).

    Its weights are always read: they are small.

    Raises:
        ConfigError: A policy that does not fit the environment, or an unknown option.
        ValueError: An invalid option (`for_env` of the configuration).
    """
    check_options(options, kind.config_class.for_env)
    wanted = kind.config_class.for_env(spec, **options)
    if path is None:
        return kind(wanted)
    policy = load_tiny(path, kind)
    require_fit(policy, wanted, spec, path=path)
    return policy


def load_tiny(folder: str | Path, kind: type[Tiny]) -> Tiny:
    """Read a folder with config.json and model.safetensors as a policy of this class.

    Raises:
        MissingAssetError: The folder or one of its two files is missing.
        CheckpointError: A truncated file, a missing part of several, or weights of another model.
    """
    folder = Path(folder)
    description = describe_folder(folder)
    stored = description.get("policy")
    if isinstance(stored, str) and stored != kind.name:
        if stored in POLICIES:
            raise ConfigError(f"{folder} holds a {stored}: choose {policy_choice(stored)}.")
        raise UnknownNameError.of(
            kind=f"policy class in {folder / CONFIG_FILE}", name=stored, known=[kind.name]
        )
    if "config" not in description and "model_type" in description:
        raise CheckpointError(
            f"{folder / CONFIG_FILE} describes a {description['model_type']} of transformers, not "
            "a robot policy: a language model acts in a text environment, such as env=math."
        )
    if "config" not in description:
        raise CheckpointError(
            f"{folder / CONFIG_FILE} has no 'policy' and 'config', so it does not describe a siirl "
            "policy: name the folder of a policy, as written by siirl train and warm-start."
        )
    try:
        config = kind.config_class.from_json(description["config"])
        # shapes are checked against the weights before memory is allocated
        with torch.device("meta"):
            planned = kind(config)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / CONFIG_FILE} does not describe a policy of siirl: {error!r}."
        ) from error
    plan_weights(planned, folder)
    policy = kind(config)
    load_weights(policy, folder)
    return policy


def describe_folder(folder: Path) -> dict[str, Any]:
    """The config.json of a policy folder.

    Raises:
        MissingAssetError: The folder or one of its two files is missing.
        ConfigError: An OpenVLA's folder.
    """
    for name, there in (
        (CONFIG_FILE, (folder / CONFIG_FILE).is_file()),
        (WEIGHTS_FILE, bool(weight_files(folder))),
    ):
        if not there:
            raise MissingAssetError(
                f"No {name} in the policy folder {folder}. Set actor_rollout_ref.model.path to a "
                f"folder with {CONFIG_FILE} and {WEIGHTS_FILE}, or make one: python -m "
                "siirl warm-start."
            )
    description = read_object(folder / CONFIG_FILE, remedy="Copy or make the folder again.")
    if description.get("model_type") == "openvla":
        raise ConfigError(f"{folder} holds an OpenVLA: choose model=openvla_oft or model=openvla.")
    return description


def require_fit(policy: TinyPolicy, wanted: TinyConfig, spec: EnvSpec, *, path: str) -> None:
    """Raise ConfigError unless stored weights fit the environment."""
    for field in ("image_shape", "proprioception_size"):
        if getattr(policy.config, field) != getattr(wanted, field):
            pictures = field == "image_shape" and policy.config.image_shape and wanted.image_shape
            raise ConfigError(
                f"The policy in {path} has {field}={getattr(policy.config, field)}, but "
                f"environment {spec.name!r} has {getattr(wanted, field)}: choose another "
                f"actor_rollout_ref.model.path{', or set env.image_size to fit' * bool(pictures)}."
            )
    stored, needed = policy.action_tokenizer, wanted.option("action_tokenizer")
    if type(stored) is not type(needed) or any(
        getattr(stored, name) != getattr(needed, name) for name in ("low", "high", "counts")
    ):
        raise ConfigError(
            f"The policy in {path} acts in {stored}, but environment {spec.name!r} in "
            f"{spec.action_space}."
        )
