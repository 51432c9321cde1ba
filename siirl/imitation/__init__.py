"""Warm starts: supervised learning of a policy before RL, from demonstrations or from answers."""
