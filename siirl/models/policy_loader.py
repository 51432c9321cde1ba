"""Policy folders: `config.json` and `model.safetensors`, written and read, and the one place that turns a name into a policy.

Language models are `siirl.models.language_model`'s.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from envs.base import EnvSpec
from siirl.errors import CheckpointError, ConfigError, MissingAssetError, UnknownNameError
from siirl.models.policy import Policy
from siirl.models.tiny_vla import TINY_VLA, TinyVLA, TinyVLAConfig
from siirl.models.weights import CONFIG_FILE, WEIGHTS_FILE, load_weights
from siirl.params.documents import read_object
from siirl.params.domains import OPENVLA_OFT, VLA_POLICIES
from siirl.params.references import load_reference
from siirl.params.weight_files import weight_files


def save_policy(policy: Policy, folder: str | Path, *, notes: dict[str, Any] | None = None, dtype: torch.dtype | None = None) -> None:
    """Write a policy folder.

    Args:
        policy: What is saved.
        folder: Made if it is not there.
        notes: For who reads the folder, for example the command that made the weights.
        dtype: Of the file; by default that of the weights.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    policy.describe(folder, notes=notes or {})
    tensors = {name: tensor.detach().to("cpu", dtype or tensor.dtype).contiguous() for name, tensor in policy.state_dict().items()}
    save_file(tensors, folder / WEIGHTS_FILE)


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
    description = read_object(folder / CONFIG_FILE, remedy="Copy or make the folder again.")
    if description.get("model_type") == "openvla":
        raise ConfigError(f"{folder} holds an OpenVLA: take model={OPENVLA_OFT}.")
    if isinstance(description.get("policy"), str) and description["policy"] != TINY_VLA:
        raise UnknownNameError.of(kind=f"policy class in {folder / CONFIG_FILE}", name=description["policy"], known=[TINY_VLA])
    try:
        config = TinyVLAConfig.from_json(description["config"])
        with torch.device("meta"):  # sizes that nobody has memory for are compared with those of the weights first
            planned = TinyVLA(config)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / CONFIG_FILE} does not describe a policy of siirl: {error!r}.") from error
    load_weights(planned, folder, weights=False)
    policy = TinyVLA(config)
    load_weights(policy, folder)
    return policy


def build_policy(name: str, *, path: str | None, spec: EnvSpec, seed: int, options: dict[str, Any], weights: bool = True) -> Policy:
    """The policy of a job: a folder's where `path` is given, else a new one for the environment.

    Args:
        name: One of VLA_POLICIES, or `module:name` of a user's own: called with (spec, path, **options), returns a `Policy`.
        path: Policy folder, or None for random weights drawn from `seed`.
        spec: The environment that the policy must fit.
        options: Keyword arguments for the policy's configuration.
        weights: False leaves those of a published policy, of which there are gigabytes, unread.

    Raises:
        ConfigError: A policy that does not fit the environment.
    """
    torch.manual_seed(seed)
    if ":" in name:
        own = load_reference(name, place="actor_rollout_ref.model.policy")(spec, path, **options)
        if not isinstance(own, Policy):
            raise ConfigError(f"actor_rollout_ref.model.policy={name} made a {type(own).__name__}; it must be a siirl.models.Policy.")
        return own
    if name not in VLA_POLICIES:
        raise UnknownNameError.of(kind="policy (actor_rollout_ref.model.policy)", name=name, known=[*VLA_POLICIES, "module:name"])
    if name == OPENVLA_OFT:
        from siirl.models.openvla_checkpoint import load_openvla_oft  # imports transformers

        if path is None:
            raise ConfigError(f"model={OPENVLA_OFT} has no weights of its own: give actor_rollout_ref.model.path= a checkpoint's folder.")
        return load_openvla_oft(path, spec, **options, weights=weights)
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
