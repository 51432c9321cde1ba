"""Policies: the tiny VLA that the repository ships, its tokenizers, and the loader of policy
folders and users' own policies.

Language models are imported from where they are: `language_model`, `chat`, and `tiny_lm`, the one
that the repository ships.
"""

from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.policy import Policy
from siirl.models.policy_loader import load_policy, save_policy
from siirl.models.tiny_vla import TinyVLA, TinyVLAConfig

__all__ = ["ActionTokenizer", "Policy", "TinyVLA", "TinyVLAConfig", "load_policy", "save_policy"]
