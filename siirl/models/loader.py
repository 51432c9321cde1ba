"""Policy folders: `config.json` and `model.safetensors`, written and read, and the one place that turns a name into a policy.

Weights in several files with `model.safetensors.index.json`, as Hugging Face cuts large ones, are read as well, and never written.

OpenVLA and OpenVLA-OFT checkpoints come with LIBERO; language models are `siirl.models.language_model`'s.
"""

import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from envs.base import EnvSpec
from siirl.errors import CheckpointError, ConfigError, MissingAssetError, UnknownNameError
from siirl.models.policy import Policy
from siirl.models.tiny_vla import TinyVLA, TinyVLAConfig
from siirl.params.files import WHOLE_FILE, weight_files
from siirl.params.references import load_reference

WEIGHTS_FILE, CONFIG_FILE = WHOLE_FILE, "config.json"
POLICIES = {"tiny_vla": TinyVLA}


def save_policy(policy: Policy, folder: str | Path, *, notes: dict[str, Any] | None = None, dtype: torch.dtype | None = None) -> None:
    """Write a policy folder.

    Args:
        policy: What is saved.
        folder: Made if it is not there.
        notes: Go into config.json, for example the command that made the weights.
        dtype: Of the file; by default that of the weights.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    describe_policy(policy, folder, notes=notes)
    tensors = {name: tensor.detach().to("cpu", dtype or tensor.dtype).contiguous() for name, tensor in policy.state_dict().items()}
    save_file(tensors, folder / WEIGHTS_FILE)


def describe_policy(policy: nn.Module, folder: Path, *, notes: dict[str, Any] | None = None) -> None:
    """Write the config.json that makes a policy folder of one with weights; a user's own class describes itself, or is not described."""
    if isinstance(policy, TinyVLA):
        description = {"policy": "tiny_vla", "config": policy.config.to_json(), "notes": notes or {}}
        (folder / CONFIG_FILE).write_text(json.dumps(description, indent=1) + "\n")


def load_policy(folder: str | Path) -> TinyVLA:
    """Read a policy folder.

    Raises:
        MissingAssetError: The folder or one of its two files is not there.
        CheckpointError: A truncated file, one of several that is not there, or weights of another model.
    """
    folder = Path(folder)
    for name, there in ((CONFIG_FILE, (folder / CONFIG_FILE).is_file()), (WEIGHTS_FILE, bool(weight_files(folder)))):
        if not there:
            raise MissingAssetError(
                f"No {name} in the policy folder {folder}. Give actor_rollout_ref.model.path= a folder with {CONFIG_FILE} and "
                f"{WEIGHTS_FILE}, or make one: python -m siirl.warm_start."
            )
    try:
        description = json.loads((folder / CONFIG_FILE).read_text())
        if description["policy"] not in POLICIES:
            raise UnknownNameError.of(kind=f"policy class in {folder / CONFIG_FILE}", name=description["policy"], known=POLICIES)
        policy = TinyVLA(TinyVLAConfig.from_json(description["config"]))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / CONFIG_FILE} does not describe a policy of siirl: {error!r}.") from error
    load_weights(policy, folder)
    return policy


def load_weights(module: nn.Module, place: Path) -> None:
    """Read weights into `module`; every name and shape must fit, else CheckpointError says which does not.

    A weight with two names (tied) may be there under one of them.

    Args:
        module: What gets them.
        place: A safetensors file, or a folder with one or with several (see `weight_files`).
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(place) if place.is_dir() else [place]:
        tensors |= _read(file)
    expected = module.state_dict(keep_vars=True)
    there = {id(weight) for name, weight in expected.items() if name in tensors}
    wrong = [f"missing {name}" for name, weight in expected.items() if id(weight) not in there]
    wrong += [f"unexpected {name}" for name in tensors.keys() - expected.keys()]
    wrong += [
        f"{name} is {tuple(tensors[name].shape)}, expected {tuple(expected[name].shape)}"
        for name in expected.keys() & tensors.keys()
        if tensors[name].shape != expected[name].shape
    ]
    if wrong:
        raise CheckpointError(
            f"{place} holds another model than {type(module).__name__}: {'; '.join(sorted(wrong)[:5])} ({len(wrong)} in all)."
        )
    module.load_state_dict(tensors, strict=False)


def _read(file: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{file} ({file.stat().st_size} bytes) is not a whole safetensors file: {error}. Copy or make it again."
        ) from error


def build_policy(name: str, *, path: str | None, spec: EnvSpec, seed: int, options: dict[str, Any]) -> Policy:
    """The policy of a job: a folder's where `path` is given, else a new one for the environment.

    Args:
        name: A key of POLICIES, or `module:name` of a user's own: called with (spec, path, **options), returns a `Policy`.
        path: Policy folder, or None for random weights drawn from `seed`.
        spec: The environment that the policy must fit.
        options: Keyword arguments for the policy's configuration.

    Raises:
        ConfigError: A policy that does not fit the environment.
    """
    torch.manual_seed(seed)
    if ":" in name:
        own = load_reference(name, place="actor_rollout_ref.model.policy")(spec, path, **options)
        if not isinstance(own, Policy):
            raise ConfigError(f"actor_rollout_ref.model.policy={name} made a {type(own).__name__}; it must be a siirl.models.Policy.")
        return own
    if name not in POLICIES:
        raise UnknownNameError.of(kind="policy (actor_rollout_ref.model.policy)", name=name, known=[*POLICIES, "module:name"])
    wanted = TinyVLAConfig.for_env(spec, **options)
    if path is None:
        return TinyVLA(wanted)
    policy = load_policy(path)
    for field in ("image_shape", "proprioception_size"):
        if getattr(policy.config, field) != getattr(wanted, field):
            raise ConfigError(
                f"The policy in {path} has {field}={getattr(policy.config, field)}, but environment {spec.name!r} has "
                f"{getattr(wanted, field)}: choose another actor_rollout_ref.model.path, or set env.image_size to fit."
            )
    if (policy.action_tokenizer.low, policy.action_tokenizer.high) != (wanted.action_tokenizer.low, wanted.action_tokenizer.high):
        raise ConfigError(f"The policy in {path} acts in {policy.action_tokenizer}, but environment {spec.name!r} in {spec.action_space}.")
    return policy
