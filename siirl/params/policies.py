"""Registry of policies, for `actor_rollout_ref.model.policy`; importing it does not import torch.

A shipped policy is one file of siirl.models and one line here. The line names a class or
function that is called with `(spec, path, weights=..., **options)` and returns a
`siirl.models.Policy`:

    spec     envs.base.EnvSpec: the environment that it must fit
    path     folder of its weights (`actor_rollout_ref.model.path`); None: new random weights
    weights  False: only check names and shapes, without reading large weights
    options  `actor_rollout_ref.model.options`

It raises ConfigError or ValueError for an environment or an option that does not fit, and
CheckpointError for another model's weights. A user's `module:name` is called in the same way,
without `weights`.
"""

POLICIES: dict[str, str] = {
    "tiny_vla": "siirl.models.tiny_vla:make_tiny_vla",
    "tiny_flow_vla": "siirl.models.tiny_flow_vla:make_tiny_flow_vla",
    "control_policy": "siirl.models.control_policy:make_control_policy",
    "smolvla": "siirl.models.smolvla_checkpoint:make_smolvla",
    "pi0": "siirl.models.pi_checkpoint:make_pi0",
    "pi05": "siirl.models.pi_checkpoint:make_pi05",
    "openvla": "siirl.models.openvla_checkpoint:make_openvla",
    "openvla_oft": "siirl.models.openvla_checkpoint:make_openvla_oft",
}
"""Policies that act, by name."""

FROZEN = {
    "smolvla": "vlm_with_expert.vlm.",
    "pi0": "paligemma_with_expert.paligemma.",
    "pi05": "paligemma_with_expert.paligemma.",
}
"""Maps a policy to the part of a weight's name that `train_expert_only` freezes."""

EXPERT_ONLY = ("pi0", "pi05")
"""Policies that freeze it unless `train_expert_only` is false; the others follow config.json."""

PADDED = tuple(FROZEN)
"""Policies that also draw numbers for padding and for later actions, in their own order."""

_OF_LEROBOT = "a folder that LeRobot saved (lerobot-train --policy.type={}), or to hf://OWNER/NAME"
_OF_OPENVLA = "a checkpoint's folder"
WEIGHTS_OF_OTHERS = {
    **{name: _OF_LEROBOT.format(name) for name in ("smolvla", "pi0", "pi05")},
    **dict.fromkeys(("openvla", "openvla_oft"), _OF_OPENVLA),
}
"""Maps a policy whose weights siirl neither ships nor makes to what its path must name."""


def no_weights(policy: str, *, key: str = "actor_rollout_ref.model.path") -> str:
    """The remedy for a policy of `WEIGHTS_OF_OTHERS` that has no weights, without a full stop.

    Args:
        policy: Its name.
        key: Key of the path that must be set.
    """
    return f"model={policy} ships no weights: set {key} to {WEIGHTS_OF_OTHERS[policy]}"


LANGUAGE_MODEL = "causal_lm"
"""The policy of every text job (siirl.models.language_model)."""

VISION_MODEL_TYPES = ("qwen2_5_vl", "qwen2_vl")
"""`model_type` of vision-language models, for which transformers has a separate class."""
