"""Success rates and mean rewards with 95 % intervals (Wilson, Student), and pass@k. Works on plain
numbers, without torch.

Left out: intervals over the seeds of a run (curves show every seed instead), and tests between two
rates, because non-overlap of two intervals is the stricter criterion.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NORMAL_QUANTILE_95 = 1.959963984540054  # two-sided 95 % of the standard normal distribution


@dataclass(frozen=True)
class SuccessInterval:
    """`successes` of `episodes`, the rate between 0 and 1, and its 95 % interval from `low` to
    `high`.
    """

    successes: int
    episodes: int
    rate: float
    low: float
    high: float

    def __str__(self) -> str:
        """For example `43.0 % [33.7, 52.8] (43/100)`."""
        if self.episodes == 0:
            return "no episodes"
        return (
            f"{100 * self.rate:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}] "
            f"({self.successes}/{self.episodes})"
        )

    def overlaps(self, other: "SuccessInterval") -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high

    def change_since(self, before: "SuccessInterval") -> str:
        """For example `+32.0 points, intervals are apart`; empty if one of them has no episodes."""
        if not before.episodes or not self.episodes:
            return ""
        return (
            f"{100 * (self.rate - before.rate):+.1f} points, intervals "
            f"{'overlap' if self.overlaps(before) else 'are apart'}"
        )


def success_interval(successes: int, episodes: int) -> SuccessInterval:
    """The Wilson score interval at 95 % (Wilson 1927, JASA 22:209, eq. 4), which also holds near 0
    and 1 and for few episodes.

    Without episodes the rate is NaN and the interval [0, 1].

    Raises:
        ValueError: Impossible counts.
    """
    if not 0 <= successes <= episodes:
        raise ValueError(
            f"{successes} successes of {episodes} episodes are impossible: 0 <= successes <= "
            "episodes must hold."
        )
    if episodes == 0:
        return SuccessInterval(successes=0, episodes=0, rate=math.nan, low=0.0, high=1.0)
    rate = successes / episodes
    squared = _NORMAL_QUANTILE_95**2
    centre = (rate + squared / (2 * episodes)) / (1 + squared / episodes)
    half = (
        _NORMAL_QUANTILE_95
        * math.sqrt(rate * (1 - rate) / episodes + squared / (4 * episodes**2))
        / (1 + squared / episodes)
    )
    # The ends are exactly 0 or 1 if none or all succeed; rounding would leave them slightly off.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == episodes else centre + half
    return SuccessInterval(successes=successes, episodes=episodes, rate=rate, low=low, high=high)


def pass_at_k(*, samples: int, successes: int, k: int) -> float:
    """Estimate pass@k from `successes` of `samples` answers.

    One minus the share of sets of k answers without a right one, 1 - C(n - c, k) / C(n, k):
    the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, eq. 1). Raising the success rate
    to the k-th power instead would be biased.

    Raises:
        ValueError: Impossible counts, or fewer samples than `k`.
    """
    if not 0 <= successes <= samples or not 1 <= k <= samples:
        raise ValueError(
            f"pass@{k} of {successes} successes in {samples} samples is undefined: 0 <= successes "
            "<= samples and k <= samples must hold."
        )
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def evaluations(metrics: Mapping[str, Any], *, kind: str = "") -> dict[str, SuccessInterval]:
    """The success of each evaluated task, from the metrics `val/<task>/successes` and
    `val/<task>/episodes`; `all` comes last.

    `kind="argmax_"` reads the metrics of greedy actions, `val/<task>/argmax_successes` and so on;
    `kind="any_"` those of prompts with any successful sample.
    """
    suffix = f"/{kind}episodes"
    tasks = [
        name[len("val/") : -len(suffix)]
        for name in metrics
        if name.startswith("val/") and name.endswith(suffix)
    ]
    found = {
        task: (metrics.get(f"val/{task}/{kind}successes"), metrics[f"val/{task}{suffix}"])
        for task in sorted(tasks, key=all_last)
    }
    counted: dict[str, tuple[Any, Any]] = {
        task: counts for task, counts in found.items() if _are_counts(*counts)
    }
    return {
        task: success_interval(round(successes), round(episodes))
        for task, (successes, episodes) in counted.items()
    }


def _are_counts(successes: Any, episodes: Any) -> bool:
    """Whether these are valid counts; a user's node may log a similar name."""
    return (
        isinstance(successes, int | float)
        and isinstance(episodes, int | float)
        and 0 <= successes <= episodes < math.inf
    )


@dataclass(frozen=True)
class MeanInterval:
    """Mean reward of `episodes` and its 95 % interval; None if the spread is unknown."""

    mean: float
    episodes: int
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """For example `0.512 [0.431, 0.593] (n=100)`."""
        interval = "" if self.low is None else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.mean:.3g}{interval} (n={self.episodes})"

    def change_since(self, before: "MeanInterval") -> str:
        """For example `+0.12, intervals overlap`; without intervals only the difference."""
        if self.low is None or self.high is None or before.low is None or before.high is None:
            return f"{self.mean - before.mean:+.3g}"
        together = self.low <= before.high and before.low <= self.high
        return f"{self.mean - before.mean:+.3g}, intervals {'overlap' if together else 'are apart'}"


def mean_interval(*, mean: float, std: float | None, episodes: int) -> MeanInterval:
    """Student's interval at 95 %, mean -+ t(0.975, n - 1) s / sqrt(n) (Student 1908, Biometrika
    6:1).

    Valid for many episodes with any rewards, and for few if rewards are about normal. Equal
    rewards, or a single one, do not show the spread, so they have no interval.

    Args:
        mean: Mean of the rewards.
        std: Standard deviation of the rewards with denominator n - 1; None for a single reward.
        episodes: Number of rewards (n), at least 1.
    """
    if not std or episodes < 2:
        return MeanInterval(mean=mean, episodes=episodes, low=None, high=None)
    # imported here, because most runs have success rates and do not need it
    from scipy.special import stdtrit

    half = float(stdtrit(episodes - 1, 0.975)) * std / math.sqrt(episodes)
    return MeanInterval(mean=mean, episodes=episodes, low=mean - half, high=mean + half)


def mean_scores(metrics: Mapping[str, Any], *, kind: str = "") -> dict[str, MeanInterval]:
    """The job's own reward of each evaluated task, from the metrics `val/<task>/mean_score` and so
    on; `all` comes last.

    Empty if the environment grades every episode. `kind="argmax_"` reads the metrics of greedy
    actions.
    """
    suffix, counted = f"/{kind}mean_score", f"/{kind}scored_episodes"
    tasks = [
        name[len("val/") : -len(suffix)]
        for name in metrics
        if name.startswith("val/") and name.endswith(suffix)
    ]
    tasks = [task for task in tasks if f"val/{task}{counted}" in metrics]
    return {
        task: mean_interval(
            mean=metrics[f"val/{task}{suffix}"],
            std=metrics.get(f"val/{task}/{kind}score_std"),
            episodes=round(metrics[f"val/{task}{counted}"]),
        )
        for task in sorted(tasks, key=all_last)
    }


def all_last(task: str) -> tuple[bool, str]:
    """Sorts tasks by name, with `all` at the end."""
    return task == "all", task
