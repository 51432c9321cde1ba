"""Policies: the shipped tiny VLA, its tokenizers, and loaders of policy folders and user policies.

Language models have their own modules: `language_model`, `chat`, and `tiny_lm`, the shipped one.
"""

from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.policy import Policy
from siirl.models.policy_loader import load_policy, save_policy
from siirl.models.tiny_vla import TinyVLA, TinyVLAConfig

__all__ = ["ActionTokenizer", "Policy", "TinyVLA", "TinyVLAConfig", "load_policy", "save_policy"]
