"""report.html by keyboard alone, in a browser."""

import json
from collections.abc import Iterator

import pytest

from siirl.reporting.report_page import write_report
from tests.browser import Browser, browser, needs_browser
from tests.hostile_run import write_hostile_run

pytestmark = needs_browser
PHONE = {"width": 390, "height": 844}
OPENS_ALL = """
new Promise((done) => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  requestAnimationFrame(() => requestAnimationFrame(() => done()));
})
"""
STOPS = """
[...document.querySelectorAll("*")].filter((one) => {
  const style = getComputedStyle(one);
  const scrolls = ["auto", "scroll"].includes(style.overflowX) && one.scrollWidth > one.clientWidth + 1
    || ["auto", "scroll"].includes(style.overflowY) && one.scrollHeight > one.clientHeight + 1;
  return one.matches("a[href], summary, video, .chart, [data-help]:not([data-help=''])")
    || scrolls && one !== document.documentElement && !one.matches("nav");
})
"""
FOCUSED = """
(() => {
  const one = document.activeElement, nav = document.querySelector("body > nav");
  const covered = !nav.contains(one) && one.getBoundingClientRect().bottom <= nav.getBoundingClientRect().bottom;
  return {stop: window.stops.indexOf(one), tag: one.tagName, covered: covered && !one.matches(".skip")};
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The report of a run on a phone's width, all of it unfolded."""
    folder = tmp_path_factory.mktemp("run")
    write_hostile_run(folder, "push", "a long name of a task " * 5)
    (folder / "plan.txt").write_text("a line of the plan that is wider than a phone " * 3)
    with browser(tmp_path_factory.mktemp("home")) as started:
        started.open(write_report(folder), **PHONE)
        started.run(OPENS_ALL)
        started.run(f"void (window.stops = {STOPS})")
        yield started


def test_tab_reaches_every_part_uncovered_and_leaves_the_page(page: Browser) -> None:
    count = page.run("window.stops.length")
    assert count > 30
    reached, covered = set(), []
    for _ in range(40 * count):  # the buttons of a video are stops of their own
        page.press("Tab")
        focused = page.run(FOCUSED)
        if focused["tag"] == "BODY":
            break
        reached.add(focused["stop"])
        covered += [focused["stop"]] * focused["covered"]
    missed = sorted(set(range(count)) - reached)
    assert not [page.run(f"window.stops[{stop}].outerHTML.slice(0, 200)") for stop in missed]
    assert not covered
    assert focused["tag"] == "BODY"


@pytest.mark.parametrize("name", ["Graph", "Plan"])
def test_the_arrow_keys_scroll_what_is_wider_than_the_page(page: Browser, name: str) -> None:
    region = f"document.querySelector({json.dumps(f'[role=region][aria-label={name}]')})"
    page.run(f"{region}.focus()")
    page.press("ArrowRight")
    scrolled = f"new Promise((done) => {region}.addEventListener('scroll', () => done(true)))"
    assert page.run(f"{region}.scrollLeft > 0 || {scrolled}")


def test_parts_that_fit_are_not_stops(page: Browser) -> None:
    fits = "one.scrollWidth <= one.clientWidth && one.scrollHeight <= one.clientHeight"
    regions = "[...document.querySelectorAll('[data-region]')]"
    fitting = f"{regions}.filter((one) => {fits})"
    assert page.run(f"{fitting}.length") > 0
    assert not page.run(f"{fitting}.some((one) => one.hasAttribute('tabindex'))")
