"""Every advantage as a loop over plain numbers, from its paper: the reference of the tensor code.

Each takes the summed rewards of samples and their groups, or the token rewards of one row, as lists
of floats.
"""

import itertools
import math
import statistics

# relative; rewards that are equal but for the rounding of float32 or float64 differ by less
EQUAL = 1e-6


def members_of(group, groups):
    """Positions of the samples of a group."""
    return [i for i, other in enumerate(groups) if other == group]


def grpo_loop(rewards, groups, *, epsilon=1e-6, normalize=True):
    """DeepSeekMath, section 4.1.2; without the deviation Dr. GRPO, section 3.2."""
    advantages = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [rewards[i] for i in members_of(group, groups)]
        if not has_signal(group, rewards, groups):
            advantages.append(0.0)
            continue
        centred = reward - math.fsum(members) / len(members)
        advantages.append(centred / (statistics.stdev(members) + epsilon) if normalize else centred)
    return advantages


def rloo_loop(rewards, groups):
    """Each sample against the mean of the others of its group."""
    advantages = []
    for i, group in enumerate(groups):
        others = [rewards[j] for j in members_of(group, groups) if j != i]
        advantages.append(
            rewards[i] - math.fsum(others) / len(others)
            if has_signal(group, rewards, groups)
            else 0.0
        )
    return advantages


def opo_loop(rewards, groups, lengths):
    """Each sample against the mean of its group that is weighted by lengths, its own included."""
    advantages = []
    for i, group in enumerate(groups):
        members = members_of(group, groups)
        tokens = math.fsum(lengths[j] for j in members)
        weights = {j: lengths[j] / tokens if tokens else 1 / len(members) for j in members}
        baseline = math.fsum(weights[j] * rewards[j] for j in members)
        advantages.append(rewards[i] - baseline if has_signal(group, rewards, groups) else 0.0)
    return advantages


def has_signal(group, rewards, groups):
    """Whether a group's rewards differ, by more than rounding; those of a group of one do not."""
    members = [rewards[i] for i in members_of(group, groups)]
    return not math.isclose(min(members), max(members), rel_tol=EQUAL)


def gpg_loop(rewards, groups):
    """B / (B - M) times the distance to the mean, M samples in groups without a signal."""
    silent = sum(not has_signal(group, rewards, groups) for group in groups)
    alpha = len(rewards) / (len(rewards) - silent) if silent < len(rewards) else 1.0
    return [alpha * advantage for advantage in grpo_loop(rewards, groups, normalize=False)]


def cpgd_clip_filter_loop(rewards, groups):
    """The distance to the mean, times groups over groups with a signal, at most 3."""
    useful = sum(has_signal(group, rewards, groups) for group in set(groups))
    weight = min(3.0, len(set(groups)) / useful) if useful else 1.0
    return [weight * advantage for advantage in grpo_loop(rewards, groups, normalize=False)]


def pass_at_k_loop(rewards, groups, *, k=None, epsilon=1e-6, normalize=True):
    """A sample's gain for the best of k, averaged over all choices of the k - 1 others, one by
    one.
    """
    advantages = []
    for i, group in enumerate(groups):
        members = members_of(group, groups)
        others = [rewards[j] for j in members if j != i]
        if not has_signal(group, rewards, groups):
            advantages.append(0.0)
            continue
        size = len(members) if k is None else min(k, len(members))
        gains = [
            max(rewards[i], *choice) - max(choice)
            for choice in itertools.combinations(others, size - 1)
        ]
        scale = statistics.stdev([rewards[j] for j in members]) + epsilon if normalize else 1.0
        advantages.append(math.fsum(gains) / len(gains) / scale)
    return advantages


def gae_loop(rewards, values, mask, *, gamma, lam):
    """The recursion over the kept tokens of one row, from the last to the first."""
    advantages, next_value, next_advantage = [0.0] * len(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        if mask[t]:
            delta = rewards[t] + gamma * next_value - values[t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = values[t]
            advantages[t] = next_advantage
    return advantages


def returns_loop(rewards, mask, *, gamma):
    """Discounted sum of the rewards of this and all later kept tokens of one row."""
    kept = [t for t in range(len(rewards)) if mask[t]]
    returns = [0.0] * len(rewards)
    for place, t in enumerate(kept):
        returns[t] = math.fsum(
            gamma**distance * rewards[later] for distance, later in enumerate(kept[place:])
        )
    return returns


def whitening_loop(rows, masks, *, how="unbiased", epsilon=1e-8):
    """Subtract the mean of the kept numbers of all rows, and divide by their deviation."""
    kept = [
        x
        for row, mask in zip(rows, masks, strict=True)
        for x, keep in zip(row, mask, strict=True)
        if keep
    ]
    mean = math.fsum(kept) / len(kept) if how != "none" else 0.0
    squares = math.fsum((x - mean) ** 2 for x in kept)
    scale = {
        "unbiased": (squares / max(len(kept) - 1, 1) + epsilon) ** -0.5,
        "biased": (squares / len(kept) + epsilon) ** -0.5,
        "mean": 1.0,
        "none": 1.0,
    }[how]
    return [
        [(x - mean) * scale if keep else 0.0 for x, keep in zip(row, mask, strict=True)]
        for row, mask in zip(rows, masks, strict=True)
    ]


def at_kept_tokens(numbers, masks):
    """One number per sample, at each of its kept tokens."""
    return [
        [number if keep else 0.0 for keep in mask]
        for number, mask in zip(numbers, masks, strict=True)
    ]
