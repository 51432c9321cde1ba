"""Rollouts on ranks of their own: what passes between the resource groups `rollout` and `train`."""
