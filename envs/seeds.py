"""Ranges of episode seeds: held-out episodes from 0 on, then demonstrations, then training.

The ranges are disjoint, so that no policy is evaluated on an episode that it has seen.
"""

FIRST_DEMONSTRATION_SEED = 900_000
FIRST_TRAINING_SEED = 1_000_000
LAST_SEED = 2**31 - 1  # the largest seed that every simulator accepts
