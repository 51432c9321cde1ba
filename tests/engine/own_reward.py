"""Reward functions that tests name by `module:name`."""


def half(*, solution_str, **rest):
    """Half a point for everybody."""
    return 0.5


def no_manager(config):
    """Makes something that rewards nothing."""
    return {}
