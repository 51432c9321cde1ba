"""The page of metric names, from their declarations."""

from itertools import groupby

from docs.generate.markdown import escaped, table
from siirl.reporting.metrics import METRICS, Reduction

INTRODUCTION = """\
# Metrics

`metrics.jsonl` has one JSON line for each step with these names; TensorBoard and the report show
the same. A part in angle brackets stands for any name without a slash. **Reduction** says how the
values of several ranks, and of several rounds of a step, become one. A metric of any other name is
logged as its mean over ranks, with one warning; `register_metric` of `siirl.reporting.metrics`
declares it.

`actor/entropy`, `actor/ppo_kl`, the shares of clipped tokens and other means of the update are over
the tokens that it passes. Without an entropy or KL term, those are the tokens of rows with an
advantage: a group whose samples all earn the same is not passed. With such a term, or a loss that
reads more than the advantages, they are the tokens of all rows.

"""


def page() -> str:
    """Markdown of the page."""
    areas = groupby(METRICS.items(), key=lambda item: item[0].split("/")[0])
    by_area: dict[str, list[tuple[str, str, str]]] = {}
    for area, metrics in areas:
        rows = [
            (f"`{name}`", escaped(metric.meaning), metric.reduction.value)
            for name, metric in metrics
        ]
        by_area.setdefault(area, []).extend(rows)
    sections = [
        f"## {area}\n\n" + table(("metric", "meaning", "reduction"), rows)
        for area, rows in by_area.items()
    ]
    reductions = ", ".join(f"*{reduction.value}*" for reduction in Reduction)
    return INTRODUCTION + "\n".join(sections) + f"\nReductions: {reductions}.\n"
