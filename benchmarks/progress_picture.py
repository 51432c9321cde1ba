"""The picture of benchmarks.reward_progress: ranking of failures, reward over progress, successes
against failures and controls.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

AIM = 0.8  # rank correlation of the reward with the true distance


def draw(
    *,
    results: Mapping[str, Any],
    rewards: Mapping[str, Mapping[str, NDArray[Any]]],
    fractions_K: NDArray[Any],
    file: Path,
) -> None:
    """Three panels: rank correlations by encoder, mean reward over progress by encoder, rewards of
    the first encoder's sets.
    """
    figure, (ranking, curve, sets) = plt.subplots(1, 3, figsize=(15, 4.2), width_ratios=(3, 2, 2))
    sources = [
        source
        for source in ("policy_failures", "disturbed_experts")
        if results[next(iter(results))][source]
    ]
    for place, name in enumerate(results):
        for offset, source in enumerate(sources):
            values = results[name][source]
            label = source.replace("_", " ") if place == 0 else None
            ranking.bar(
                place + 0.4 * offset, values["mean"], width=0.38, color=f"C{offset}", label=label
            )
            tasks = [task["rank_correlation"] for task in values.values() if isinstance(task, dict)]
            ranking.plot([place + 0.4 * offset] * len(tasks), tasks, "k.", markersize=4)
        curve.plot(fractions_K, rewards[name]["cut"].mean(axis=0), label=name)
    ranking.axhline(AIM, color="grey", linestyle=":")
    ranking.set(ylabel="rank correlation of reward and distance left", ylim=(-0.4, 1))
    ranking.set_xticks(np.arange(len(results)) + 0.2, list(results), rotation=20, ha="right")
    ranking.legend()
    curve.set(
        xlabel="shown fraction of a held-out expert clip",
        ylabel="mean reward",
        title="reward over progress",
    )
    curve.legend(fontsize=8)
    shown = ("whole", "shuffled", "reversed", "failures")
    first = next(iter(rewards))
    sets.boxplot(
        [rewards[first][name] for name in shown],
        tick_labels=["expert", "shuffled", "reversed", "failures"],
    )
    sets.set(ylabel=f"reward ({first})", title="held-out clips, none told to have succeeded")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
