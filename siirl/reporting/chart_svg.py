"""Draws a chart as inline SVG: axes, curves with points and intervals, a legend below.

Colours are CSS classes, so that the page's light and dark themes apply. Hover data is in
`data-chart` as JSON, which report_page.js reads; every text is escaped here.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from siirl.reporting.charts import Chart, Point, Series, heights
from siirl.reporting.numbers import number
from siirl.terminal.printable import printable

WIDTH, HEIGHT = 460, 230
_LEFT = 52
_RIGHT = 12
_TOP = 10
_BOTTOM = 26
_COLOURS = 12
"""Colours of the page; further curves repeat them dashed."""
_MOST_MARKED = 60
"""Up to this many points, each is marked; a single point always is."""
_MOST_POINTS = 400
"""Limit of points: more points than pixels would only make the page larger."""
_SMALLEST_SPAN = 1e-300
_FINEST_SHARE = 1e-12  # share of the larger end
_ERROR_BARS = 30
"""Up to this many points, intervals are bars; above, they are a band."""


def draw(chart: Chart) -> Markup:
    """The chart as `<figure>`; its curves must have at least one point in total."""
    series = [_thinned(curve) for curve in chart.series]
    shown = Chart(chart.title, series, chart.percent, chart.whole, chart.stacked)
    axes = _Axes(shown)
    drawn = heights(shown)
    order = range(len(series) - 1, -1, -1) if chart.stacked else range(len(series))
    body = Markup("").join(
        [axes.drawn(), *(_curve(axes, series[i], drawn[i], i, shown) for i in order)]
    )
    facts = _facts(axes, shown, drawn)
    unit = ", %" if chart.percent else ""
    return Markup(
        '<figure class="chart" tabindex="0" role="group" aria-label="{label}" data-chart="{facts}">'
        "<figcaption>{title}{unit}</figcaption>"
        '<svg viewBox="0 0 {width} {height}" aria-hidden="true">{body}'
        '<line class="cursor" y1="{top}" y2="{bottom}" x1="-9" x2="-9"/></svg>'
        '<div class="tip" aria-live="polite"></div>{legend}</figure>'
    ).format(
        label=f"{chart.title}: {_spoken(shown)}",
        facts=json.dumps(facts),
        title=chart.title,
        unit=unit,
        width=WIDTH,
        height=HEIGHT,
        body=body,
        top=_TOP,
        bottom=HEIGHT - _BOTTOM,
        legend=_legend(shown),
    )


def ticks(low: float, high: float, *, most: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) that cover `low` to `high`."""
    # a finer step has indices beyond 2 ** 53, which floats cannot distinguish
    span = max(high - low, _FINEST_SHARE * max(abs(low), abs(high)))
    span = span if span > _SMALLEST_SPAN else 1.0
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def text_of(value: float, *, percent: bool) -> str:
    """A value in display form."""
    return f"{100 * value:.1f} %" if percent else number(value)


class _Axes:
    """Maps steps and values to pixels."""

    def __init__(self, chart: Chart) -> None:
        points = [point for curve in chart.series for point in curve.points]
        steps = [point.step for point in points]
        self.first, self.last = min(steps), max(steps)
        values = [value for column in heights(chart) for value in column if math.isfinite(value)]
        for point in points:
            values += [end for end in (point.low, point.high) if end is not None]
        low, high = min([0.0, *values]), max([0.0, *values])
        self.scale = 100.0 if chart.percent else 1.0
        self.ticks = (
            [0.0, 0.25, 0.5, 0.75, 1.0]
            if chart.whole
            else [tick / self.scale for tick in ticks(low * self.scale, high * self.scale)]
        )

    def x(self, step: int) -> float:
        if self.last == self.first:
            return (_LEFT + WIDTH - _RIGHT) / 2
        share = (step - self.first) / (self.last - self.first)
        return round(_LEFT + 4 + share * (WIDTH - _LEFT - _RIGHT - 8), 1)

    def y(self, value: float) -> float:
        share = (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    def drawn(self) -> Markup:
        lines = [
            Markup(
                '<line class="rule" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
                '<text x="{at}" y="{low}" text-anchor="end">{label}</text>'
            ).format(
                left=_LEFT,
                right=WIDTH - _RIGHT,
                y=self.y(tick),
                at=_LEFT - 6,
                low=self.y(tick) + 4,
                label=number(tick * self.scale),
            )
            for tick in self.ticks
        ]
        for step in self._steps():
            lines.append(
                Markup('<text x="{x}" y="{y}" text-anchor="middle">{step}</text>').format(
                    x=self.x(step), y=HEIGHT - 8, step=step
                )
            )
        return Markup("").join(lines)

    def _steps(self) -> list[int]:
        found = {
            round(tick)
            for tick in ticks(self.first, self.last, most=6)
            if self.first <= round(tick) <= self.last
        }
        return sorted(found or {self.first})


def _curve(axes: _Axes, curve: Series, drawn: Sequence[float], index: int, chart: Chart) -> Markup:
    colour = f"c{index % _COLOURS}" + (f" d{index // _COLOURS}" if index >= _COLOURS else "")
    pixels = [
        (axes.x(point.step), axes.y(value))
        for point, value in zip(curve.points, drawn, strict=True)
        if math.isfinite(value)
    ]
    parts = []
    if chart.stacked:
        base = axes.y(0.0)
        corners = [(pixels[0][0], base), *pixels, (pixels[-1][0], base)] if len(pixels) > 1 else []
        parts.append(_shape("polygon", f"area {colour}", corners))
    else:
        parts.append(_intervals(axes, curve, colour, banded=len(curve.points) > _ERROR_BARS))
        parts.append(_shape("polyline", f"line {colour}", pixels))
    if len(pixels) <= _MOST_MARKED and (not chart.stacked or len(pixels) == 1):
        parts += [
            Markup('<circle class="point {}" cx="{}" cy="{}" r="2.6"/>').format(colour, x, y)
            for x, y in pixels
        ]
    return Markup("").join(parts)


def _intervals(axes: _Axes, curve: Series, colour: str, *, banded: bool) -> Markup:
    ends = [
        (axes.x(point.step), axes.y(point.low), axes.y(point.high))
        for point in curve.points
        if point.low is not None and point.high is not None
    ]
    if banded:
        corners = [(x, low) for x, low, _ in ends] + [(x, high) for x, _, high in reversed(ends)]
        return _shape("polygon", f"band {colour}", corners)
    bar = Markup('<line class="bar {}" x1="{x}" x2="{x}" y1="{}" y2="{}"/>')
    return Markup("").join(bar.format(colour, low, high, x=x) for x, low, high in ends)


def _shape(tag: str, kind: str, pixels: Sequence[tuple[float, float]]) -> Markup:
    points = " ".join(f"{x:g},{y:g}" for x, y in pixels)
    return Markup('<{tag} class="{kind}" points="{points}"/>').format(
        tag=Markup(tag), kind=kind, points=points
    )


def _legend(chart: Chart) -> Markup:
    """Name and last value of each curve; the meaning on hover and focus."""
    entry = Markup(
        '<span class="entry" tabindex="0" data-help="{meaning}"><i class="c{colour}{dashes}"></i>'
        "{label} <b>{last}</b></span>"
    )
    entries = [
        entry.format(
            meaning=curve.meaning,
            colour=index % _COLOURS,
            dashes=f" d{index // _COLOURS}" if index >= _COLOURS else "",
            label=curve.label,
            last=text_of(curve.points[-1].value, percent=chart.percent),
        )
        for index, curve in enumerate(chart.series)
    ]
    return Markup('<div class="legend">{}</div>').format(Markup("").join(entries))


def _facts(axes: _Axes, chart: Chart, drawn: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Hover data: the pixel of each step, and each curve's text at the steps that have a value."""
    steps = sorted({point.step for curve in chart.series for point in curve.points})
    places = {step: str(place) for place, step in enumerate(steps)}
    series = []
    for curve in chart.series:
        # Chromium 156 crashes when it measures a text with U+2028 or U+202E
        label = printable(curve.label, keep="")
        at = {places[point.step]: _value(point, percent=chart.percent) for point in curve.points}
        series.append({"label": label, "at": at})
    return {
        "width": WIDTH,
        "steps": steps,
        "x": [axes.x(step) for step in steps],
        "series": series,
    }


def _value(point: Point, *, percent: bool) -> str:
    value = text_of(point.value, percent=percent)
    if point.low is None or point.high is None:
        return value
    low, high = (
        text_of(end, percent=percent).removesuffix(" %") for end in (point.low, point.high)
    )
    return f"{value} [{low}, {high}]"


def _spoken(chart: Chart) -> str:
    ends = [
        f"{curve.label} from {text_of(curve.points[0].value, percent=chart.percent)} at step "
        f"{curve.points[0].step} to {text_of(curve.points[-1].value, percent=chart.percent)} at "
        f"step {curve.points[-1].step}"
        for curve in chart.series
    ]
    return "; ".join(ends)


def _thinned(curve: Series) -> Series:
    """Every k-th point, and the last one."""
    stride = -(-len(curve.points) // _MOST_POINTS)
    kept = [*curve.points[:-1:stride], curve.points[-1]]
    return Series(curve.label, kept, meaning=curve.meaning)
