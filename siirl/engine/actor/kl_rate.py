"""Learning rate by the measured KL: a factor beside the schedule, adjusted after each update.

How far a rate moves a policy depends on the policy: the same rate that hardly moves one with a
broad distribution overshoots with a sharp one. So the factor rises while the KL between the acting
and the trained policy is under half the target, and falls while it is above twice the target
(Schulman et al. 2017, arXiv 1707.06347, section 4, applied there to a penalty; to the rate as in
Rudin et al. 2022, arXiv 2109.11978). Where the schedule lowers the rate, the target falls with it.
"""

STEP = 1.5  # Schulman et al. 2017, section 4, found the choice of its like insensitive
LARGEST = 32.0  # of the factor, either way: a wrong target does not end in weights of infinity


def next_factor(factor: float, *, kl: float, target: float) -> float:
    """Factor of the learning rate after an update with a measured `kl`, in nats a token."""
    if kl > 2 * target:
        return max(factor / STEP, 1 / LARGEST)
    if kl < target / 2:
        return min(factor * STEP, LARGEST)
    return factor
