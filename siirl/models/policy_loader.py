"""Saves policy folders (`config.json`, `model.safetensors`), and builds a policy from its name.

Language models are built by `siirl.models.language_model`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from envs.base import EnvSpec
from siirl.errors import ConfigError, UnknownNameError
from siirl.files.weight_files import WEIGHTS_FILE
from siirl.models.policy import Policy
from siirl.models.tiny_vla import load_policy
from siirl.params.config_groups import policy_choice
from siirl.params.policies import LANGUAGE_MODEL, POLICIES
from siirl.params.references import load_reference

__all__ = ["build_policy", "load_policy", "save_policy"]


def save_policy(
    policy: Policy,
    folder: str | Path,
    *,
    notes: dict[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a policy folder.

    Args:
        policy: The policy to save.
        folder: Created if missing.
        notes: For readers of the folder, for example the command that made the weights.
        dtype: Type in the file; by default that of the weights.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    policy.describe(folder, notes=notes or {})
    tensors = {
        name: tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()
        for name, tensor in policy.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS_FILE)


def build_policy(
    name: str,
    *,
    path: str | None,
    spec: EnvSpec,
    seed: int,
    options: dict[str, Any],
    weights: bool = True,
) -> Policy:
    """The policy of a job: from the folder `path` if set, else a new one for the environment.

    Args:
        name: One of `siirl.params.policies.POLICIES`, or `module:name` of a user's own.
        path: Policy folder, or None for random weights drawn from `seed`.
        spec: The environment that the policy must fit.
        options: Keyword arguments for the policy's configuration.
        weights: False skips large weights of a shipped policy class.

    Raises:
        ConfigError: A policy that does not fit the environment.
    """
    torch.manual_seed(seed)
    place = "actor_rollout_ref.model.policy"
    if name == LANGUAGE_MODEL:
        raise ConfigError(
            f"{place}={name} generates text, but environment {spec.name!r} needs actions: choose "
            f"{', '.join(map(policy_choice, POLICIES))}, or your own policy."
        )
    if name not in POLICIES and ":" not in name:
        raise UnknownNameError.of(
            kind=f"policy ({place})", name=name, known=[*POLICIES, "module:name"]
        )
    own = name not in POLICIES
    make = load_reference(name if own else POLICIES[name], place=place)
    policy = make(spec, path, **options) if own else make(spec, path, weights=weights, **options)
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"{place}={name} made a {type(policy).__name__}; it must be a siirl.models.Policy."
        )
    _require_members(policy, place=f"{place}={name}")
    return policy


def _require_members(policy: Policy, *, place: str) -> None:
    """Refuse a policy whose constructor left out a number or object that every policy has."""
    made = f"{place} made a {type(policy).__name__}"
    if getattr(policy, "action_tokenizer", None) is None:
        raise ConfigError(
            f"{made} without action_tokenizer: set self.action_tokenizer in its constructor, for "
            "example to ContinuousActions.for_space(spec.action_space)."
        )
    length = getattr(policy, "chunk_length", None)
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
        found = "without chunk_length" if length is None else f"with chunk_length={length!r}"
        raise ConfigError(
            f"{made} {found}: set self.chunk_length in its constructor to the number of actions "
            "decoded from one observation, at least 1."
        )
