"""Straightforward implementations, with which `benchmarks.algorithms` compares siirl's.

They follow common trainers of language models: GAE as a loop over time steps that is vectorised
over the batch, group statistics with a dict of lists, log-probs and entropy from all logits,
Karmarkar-Karp on whole tuples of sums.
"""

# B row, T token, N token, D hidden size, V vocabulary

import heapq
from collections import defaultdict
from collections.abc import Sequence

import torch


def gae_loop(
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, one time step after the other from the last; masked tokens are
    skipped.
    """
    next_value_B = torch.zeros_like(values_BT[:, 0])
    advantage_B = torch.zeros_like(next_value_B)
    reversed_advantages = []
    for t in reversed(range(rewards_BT.shape[1])):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        candidate_B = delta_B + gamma * lam * advantage_B
        kept_B = mask_BT[:, t]
        next_value_B = values_BT[:, t] * kept_B + (1 - kept_B) * next_value_B
        advantage_B = candidate_B * kept_B + (1 - kept_B) * advantage_B
        reversed_advantages.append(advantage_B)
    advantages_BT = torch.stack(reversed_advantages[::-1], dim=1) * mask_BT
    return advantages_BT, (advantages_BT + values_BT) * mask_BT


def group_advantages_by_lists(
    rewards_B: torch.Tensor, groups: Sequence[int], epsilon: float = 1e-6
) -> torch.Tensor:
    """GRPO's advantage with a dict of lists: a list of rewards a group, its mean and deviation, and
    a loop over samples.
    """
    rewards_of, mean_of, std_of = defaultdict(list), {}, {}
    for row, group in enumerate(groups):
        rewards_of[group].append(rewards_B[row])
    for group, rewards in rewards_of.items():
        stacked = torch.stack(rewards)
        mean_of[group], std_of[group] = stacked.mean(), stacked.std()
    advantages_B = rewards_B.clone()
    for row, group in enumerate(groups):
        advantages_B[row] = (rewards_B[row] - mean_of[group]) / (std_of[group] + epsilon)
    return advantages_B


def group_advantages_by_floats(
    rewards_B: torch.Tensor, groups: Sequence[int], epsilon: float = 1e-6
) -> torch.Tensor:
    """The same with Python numbers instead of tensors of one entry: the stronger of the simple
    baselines.
    """
    rewards_of: dict[int, list[float]] = defaultdict(list)
    rewards = rewards_B.tolist()
    for reward, group in zip(rewards, groups, strict=True):
        rewards_of[group].append(reward)
    statistics = {}
    for group, members in rewards_of.items():
        mean = sum(members) / len(members)
        variance = sum((reward - mean) ** 2 for reward in members) / max(1, len(members) - 1)
        statistics[group] = (mean, variance**0.5 + epsilon)
    advantages = [
        (r - statistics[g][0]) / statistics[g][1] for r, g in zip(rewards, groups, strict=True)
    ]
    return torch.tensor(advantages, dtype=rewards_B.dtype)


def scores_from_all_logits(
    hidden_ND: torch.Tensor, weight_VD: torch.Tensor, tokens_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropy by way of all logits, and autograd's backward pass."""
    logits_NV = hidden_ND @ weight_VD.T
    log_p_NV = torch.log_softmax(logits_NV, dim=-1)
    return log_p_NV.gather(-1, tokens_N[:, None])[:, 0], -(log_p_NV.exp() * log_p_NV).sum(-1)


def karmarkar_karp_spread(lengths: Sequence[int], count: int) -> int:
    """Heaviest minus lightest sum of the textbook's k-way largest differencing method."""
    heap = [(-length, index, [0] * (count - 1) + [length]) for index, length in enumerate(lengths)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, index, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        sums = sorted(light + heavy for light, heavy in zip(one, reversed(other), strict=True))
        heapq.heappush(heap, (sums[0] - sums[-1], index, sums))
    return -heap[0][0]
