"""Charts of a run: their curves, and the drawn points."""

import json
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from siirl.reporting import metrics
from siirl.reporting.chart_files import charts_of
from siirl.reporting.chart_svg import draw, ticks
from siirl.reporting.charts import (
    Chart,
    Point,
    Series,
    compared_charts,
    heights,
    own_charts,
    run_charts,
    task_charts,
)
from siirl.reporting.numbers import number


def evaluated(step: int, **successes: float) -> dict[str, float]:
    row: dict[str, float] = {"step": step}
    for task, count in successes.items():
        row |= {f"val/{task}/successes": count, f"val/{task}/episodes": 10.0}
    return row


def chart_of(*values: float, percent: bool = False) -> Chart:
    points = [Point(step, value) for step, value in enumerate(values)]
    return Chart("Reward", [Series("mean", points, meaning="trajectory reward")], percent=percent)


class Facts(HTMLParser):
    """Reads the data-chart attribute as a browser does."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if "data-chart" in dict(attrs):
            self.found = json.loads(dict(attrs)["data-chart"] or "")


def test_held_out_success_has_the_wilson_interval_of_all_tasks() -> None:
    (chart,) = run_charts([evaluated(0, a=5, all=5)])
    ((point,),) = (curve.points for curve in chart.series)
    assert (point.value, round(point.low, 3), round(point.high, 3)) == (0.5, 0.237, 0.763)


def test_tasks_have_charts_of_their_own_lowest_first() -> None:
    rows = [evaluated(0, a=1, b=9, all=10), evaluated(4, a=9, b=2, all=11)]
    assert [chart.title for chart in task_charts(rows)] == ["b", "a"]


def test_a_single_task_needs_no_chart_beside_that_of_all() -> None:
    assert task_charts([evaluated(0, a=1, all=1)]) == []


def test_a_compared_chart_has_a_curve_a_run() -> None:
    runs = {"one": [evaluated(0, all=1)], "two": [evaluated(0, all=2)]}
    (chart,) = compared_charts(runs)
    assert [curve.label for curve in chart.series] == ["one", "two"]
    assert chart.title == "Success on held-out episodes: sampled actions"


def test_stage_times_are_stacked() -> None:
    """The highest is the step's seconds, which have no evaluation in them."""
    row = {"step": 1, "time/a_s": 2.0, "time/b_s": 3.0, "time/step_s": 5.0}
    evaluation, stages = run_charts([row | {"time/evaluation_s": 4.0, "time/encode_video_s": 1.0}])
    assert heights(stages) == [[2.0], [5.0]]
    assert (evaluation.title, heights(evaluation)) == ("Seconds per evaluation", [[4.0]])


def test_a_metric_of_a_users_function_has_a_chart_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    metrics.register_metric("own/jerk", reduction=metrics.Reduction.MAX, meaning="largest jerk")
    row = {"step": 1, "time": 9.0, "actor/entropy": 1.0, "brevity/mean": 0.25, "own/jerk": 3.0}
    brevity, jerk = own_charts([row])
    assert (brevity.title, heights(brevity)) == ("brevity/mean", [[0.25]])
    assert jerk.series[0].meaning == "largest jerk (own/jerk; maximum)"
    compared = compared_charts({"one": [row], "two": [row]})
    assert [chart.title for chart in compared][-2:] == ["brevity/mean: value", "own/jerk: value"]
    page = [chart.title for chart in charts_of({"one": [row]})]
    assert page == ["Entropy", "brevity/mean", "own/jerk"]


def test_a_run_of_one_step_shows_a_point() -> None:
    assert draw(chart_of(0.5)).count("<circle") == 1


def test_hover_knows_the_value_and_the_interval_at_each_step() -> None:
    (chart,) = run_charts([evaluated(0, all=5), evaluated(7, all=10)])
    facts = Facts(draw(chart)).found
    assert facts["steps"] == [0, 7]
    assert facts["series"][0]["at"] == {
        "0": "50.0 % [23.7, 76.3]",
        "1": "100.0 % [72.2, 100.0]",
    }


def test_eleven_curves_look_different() -> None:
    series = [Series(str(index), [Point(0, index), Point(1, index)]) for index in range(11)]
    looks = re.findall(r'class="line ([^"]+)"', draw(Chart("many", series)))
    assert len(set(looks)) == 11


def test_a_long_curve_is_thinned_and_keeps_its_last_value() -> None:
    facts = Facts(draw(chart_of(*map(float, range(5000))))).found
    assert len(facts["steps"]) < 450
    assert facts["steps"][-1] == 4999


def test_a_charts_name_describes_the_quantity() -> None:
    assert 'data-help="trajectory reward"' in draw(chart_of(0.5))


@given(st.floats(-1e300, 1e300), st.floats(0, 1e300))
@example(low=3864140191125343.0, span=1.0)  # neighbouring floats are half a unit apart
def test_ticks_cover_the_values_and_are_few(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 8
    assert all(map(math.isfinite, found))


def test_ticks_are_round() -> None:
    assert ticks(0.0, 0.9) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=5), st.booleans())
def test_any_finite_value_can_be_drawn(values: list[float], percent: bool) -> None:
    assert "nan" not in draw(chart_of(*values, percent=percent))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.1234, "0.123"), (45.67, "45.7"), (4560.4, "4560"), (1.2e-5, "1.2e-05")],
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown
