"""Models: shipped tiny ones, OpenVLA, SmolVLA, pi0, language models; checkpoints and adapters.

Language models have their own modules: `language_model`, `chat`, and `tiny_lm`, the shipped one.
"""

from siirl.algos.distributions import ActionDistribution, Categorical, Gaussian, SquashedGaussian
from siirl.models.action_tokenizer import ActionTokenizer, ContinuousActions
from siirl.models.policy import Policy
from siirl.models.policy_loader import load_policy, save_policy
from siirl.models.tiny_vla import TinyVLA, TinyVLAConfig

__all__ = [
    "ActionDistribution",
    "ActionTokenizer",
    "Categorical",
    "ContinuousActions",
    "Gaussian",
    "Policy",
    "SquashedGaussian",
    "TinyVLA",
    "TinyVLAConfig",
    "load_policy",
    "save_policy",
]
