"""Formats numbers for people: one form for the terminal, the report and its charts.

Left out: files for programs (metrics.jsonl, CSV), which keep every digit.
"""

import math

NUMBER_WIDTH = 8
"""Characters of the longest `number`, `-1.2e-05`."""


def number(value: float) -> str:
    """Three significant digits: `0.00123`, `12.3`, `4560`, `1.2e-05`; at most eight characters."""
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float) -> str:
    """A share as a whole percentage: `43 %`."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else "-"
