"""Learning rate by the measured KL: a factor beside the schedule, adjusted after each update.

The effect of a rate depends on the policy: a rate that hardly moves a broad distribution overshoots
with a sharp one. So the factor rises while the KL between the acting and the trained policy is
under half the target, and falls while it is above twice the target (Schulman et al. 2017, arXiv
1707.06347, section 4, applied there to a penalty; to the rate as in Rudin et al. 2022, arXiv
2109.11978). If the schedule lowers the rate, the target falls with it.
"""

STEP = 1.5  # Schulman et al. 2017, section 4: the choice of such factors hardly matters
LARGEST = 32.0  # limit either way: a wrong target must not drive weights to infinity


def next_factor(factor: float, *, kl: float, target: float) -> float:
    """Factor of the learning rate after an update with a measured `kl`, in nats a token."""
    if kl > 2 * target:
        return max(factor / STEP, 1 / LARGEST)
    if kl < target / 2:
        return min(factor * STEP, LARGEST)
    return factor
