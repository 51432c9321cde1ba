"""Rollouts on separate ranks: the exchange between the resource groups `rollout` and `train`."""
