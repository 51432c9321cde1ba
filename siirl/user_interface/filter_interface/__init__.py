"""Filters as nodes: which trajectories a step trains on."""
