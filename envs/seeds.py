"""Ranges of episode seeds: held-out episodes from 0 on, then demonstrations, then training.

No held-out episode is demonstrated or trained on. LIBERO's demonstrations have seeds of the range
of training, because there the seed says whether a start state is one of the held-out ones.
"""

FIRST_DEMONSTRATION_SEED = 900_000
FIRST_TRAINING_SEED = 1_000_000
LAST_SEED = 2**31 - 1  # the largest seed that every simulator accepts
