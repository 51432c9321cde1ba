"""Pictures of benchmark results."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

SMOOTHED_STEPS = 5


def learning_curves(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Training success over steps (mean of five), a colour an arm and a line a seed, beside success
    before and after; notices above.
    """
    figure, (curves, bars) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2))
    arms: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        arms[result["arm"]].append(result)
    for place, (arm, runs) in enumerate(arms.items()):
        colour = f"C{place}"
        for run in runs:
            steps, success = np.array(run["curve"]).T
            kernel = np.ones(min(SMOOTHED_STEPS, len(success)))
            smooth = np.convolve(success, kernel / kernel.sum(), mode="valid")
            curves.plot(
                steps[len(steps) - len(smooth) :],
                100 * smooth,
                color=colour,
                alpha=0.8,
                label=arm if run is runs[0] else None,
            )
        width = min(0.2, 0.9 / len(arms))
        shift = width * (place - (len(arms) - 1) / 2)  # arms beside each other around the tick
        for offset, run in enumerate(runs):
            for when, x in (("before", 0), ("after", 1)):
                interval = run[when]["sampled"]["all"]
                error = [
                    [100 * (interval["rate"] - interval["low"])],
                    [100 * (interval["high"] - interval["rate"])],
                ]
                bars.errorbar(
                    x + shift + width / 5 * offset,
                    100 * interval["rate"],
                    error,
                    fmt="o",
                    color=colour,
                    markersize=4,
                )
    curves.set(xlabel="step", ylabel="success of training episodes, %", ylim=(0, 100))
    bars.set(
        xticks=(0, 1),
        xticklabels=("before", "after"),
        xlim=(-0.5, 1.5),
        ylabel="success of sampled actions, %",
        ylim=(0, 100),
    )
    curves.legend()
    figure.suptitle(
        "; ".join(sorted({result.get("notice", "") for result in results} - {""}))
    )  # stand-in assets, for example
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)
