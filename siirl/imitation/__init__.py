"""Warm starts: supervised training before RL, on demonstrations or answers."""
