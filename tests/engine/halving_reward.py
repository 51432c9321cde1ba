"""Reward functions that tests name by `module:name`."""


def half(*, solution_str, **rest):
    """Returns 0.5 for each sample."""
    return 0.5


def no_manager(config):
    """Makes an object that is no reward manager."""
    return {}
