"""Every registered estimator with its options and its loop from the paper; most tests of advantages
run over this table.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from paper_loops import (
    at_kept_tokens,
    cpgd_clip_filter_loop,
    gae_loop,
    gpg_loop,
    grpo_loop,
    opo_loop,
    pass_at_k_loop,
    returns_loop,
    rloo_loop,
    whitening_loop,
)
from ragged import Ragged

from siirl.algos.advantages import ADVANTAGES, estimate_advantages

GAMMA, LAM = 0.9, 0.8
SHIPPED = {
    name for name, function in ADVANTAGES.items() if function.__module__.startswith("siirl.")
}  # not those of examples


@dataclass
class Numbers:
    """A batch as plain lists, for the loops."""

    rewards: list[list[float]]
    masks: list[list[bool]]
    values: list[list[float]]
    baselines: list[float]
    groups: list[int]

    @property
    def sums(self) -> list[float]:
        return torch.tensor(self.rewards, dtype=torch.float64).sum(-1).tolist()

    @property
    def lengths(self) -> list[int]:
        return [sum(mask) for mask in self.masks]

    def returns(self, gamma: float) -> list[list[float]]:
        return [
            returns_loop(row, mask, gamma=gamma)
            for row, mask in zip(self.rewards, self.masks, strict=True)
        ]


@dataclass
class Case:
    """One estimator with its options."""

    name: str
    loop: Callable[[Numbers], list[list[float]]]
    options: dict[str, Any] = field(default_factory=dict)


def outcome(name: str, loop: Callable[[Numbers], list[float]], **options: Any) -> Case:
    """A case whose loop gives one number per sample."""
    return Case(name, lambda n: at_kept_tokens(loop(n), n.masks), options)


def gae(n: Numbers) -> list[list[float]]:
    rows = zip(n.rewards, n.values, n.masks, strict=True)
    return [gae_loop(rewards, values, mask, gamma=GAMMA, lam=LAM) for rewards, values, mask in rows]


def whitened_baseline(n: Numbers, how: str) -> list[list[float]]:
    centred = grpo_loop(n.sums, n.groups, normalize=False)
    return whitening_loop(at_kept_tokens(centred, n.masks), n.masks, how=how)


def remax(n: Numbers) -> list[list[float]]:
    return [
        [g - baseline if keep else 0.0 for g, keep in zip(row, mask, strict=True)]
        for row, mask, baseline in zip(n.returns(1.0), n.masks, n.baselines, strict=True)
    ]


CASES = {
    "grpo": outcome("grpo", lambda n: grpo_loop(n.sums, n.groups)),
    "grpo without std": outcome(
        "grpo",
        lambda n: grpo_loop(n.sums, n.groups, normalize=False),
        norm_adv_by_std_in_grpo=False,
    ),
    "dr_grpo": outcome("dr_grpo", lambda n: grpo_loop(n.sums, n.groups, normalize=False)),
    "rloo": outcome("rloo", lambda n: rloo_loop(n.sums, n.groups)),
    "opo": outcome("opo", lambda n: opo_loop(n.sums, n.groups, n.lengths)),
    "gpg": outcome("gpg", lambda n: gpg_loop(n.sums, n.groups)),
    "cpgd STD_weight": outcome(
        "cpgd", lambda n: grpo_loop(n.sums, n.groups), weight_factor_in_cpgd="STD_weight"
    ),
    "cpgd naive": outcome(
        "cpgd",
        lambda n: grpo_loop(n.sums, n.groups, normalize=False),
        weight_factor_in_cpgd="naive",
    ),
    "cpgd clip_filter_like_weight": outcome(
        "cpgd",
        lambda n: cpgd_clip_filter_loop(n.sums, n.groups),
        weight_factor_in_cpgd="clip_filter_like_weight",
    ),
    "grpo_passk": outcome("grpo_passk", lambda n: pass_at_k_loop(n.sums, n.groups)),
    "grpo_passk without std": outcome(
        "grpo_passk",
        lambda n: pass_at_k_loop(n.sums, n.groups, normalize=False),
        norm_adv_by_std_in_grpo=False,
    ),
    "grpo_passk k=2": outcome(
        "grpo_passk", lambda n: pass_at_k_loop(n.sums, n.groups, k=2), pass_k=2
    ),
    "grpo_passk k=3": outcome(
        "grpo_passk", lambda n: pass_at_k_loop(n.sums, n.groups, k=3), pass_k=3
    ),
    "remax": Case("remax", remax),
}
for how in ("unbiased", "biased", "mean", "none"):
    CASES |= {
        f"gae {how}": Case(
            "gae",
            lambda n, how=how: whitening_loop(gae(n), n.masks, how=how),
            {"adv_whitening": how},
        ),
        f"reinforce_plus_plus {how}": Case(
            "reinforce_plus_plus",
            lambda n, how=how: whitening_loop(n.returns(GAMMA), n.masks, how=how),
            {"adv_whitening": how},
        ),
        f"reinforce_plus_plus_baseline {how}": Case(
            "reinforce_plus_plus_baseline",
            lambda n, how=how: whitened_baseline(n, how),
            {"adv_whitening": how},
        ),
    }

GROUP_CASES = [
    case
    for case in CASES
    if not case.startswith(("gae", "remax", "reinforce_plus_plus ")) and case != "remax"
]


def columns(batch: Ragged) -> dict[str, torch.Tensor]:
    """A ragged batch under the estimators' argument names; a sample's greedy reward depends on its
    number.
    """
    return {
        "token_level_rewards": batch.rewards_BT,
        "response_mask": batch.mask_BT,
        "index": batch.group_B,
        "values": batch.values_BT,
        "reward_baselines": torch.linspace(-1.0, 2.0, len(batch.group_B), dtype=torch.float64),
    }


def numbers_of(given: dict[str, torch.Tensor]) -> Numbers:
    """The same as lists."""
    return Numbers(
        rewards=given["token_level_rewards"].tolist(),
        masks=given["response_mask"].tolist(),
        values=given["values"].tolist(),
        baselines=given["reward_baselines"].tolist(),
        groups=given["index"].tolist(),
    )


def advantages_of(case: str, given: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    """The advantages of a case; options win over the case's own."""
    available = {**given, "gamma": GAMMA, "lam": LAM, **CASES[case].options, **options}
    return estimate_advantages(name=CASES[case].name, available=available)[0]
