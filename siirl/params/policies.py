"""Names of `actor_rollout_ref.model.policy`. Importing this imports no torch."""

LANGUAGE_MODEL = "causal_lm"
"""The policy of every text job (siirl.models.language_model)."""
