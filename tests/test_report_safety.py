"""report.html shows untrusted text and never interprets it: by a parser, and in a browser."""

import contextlib
import html.parser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siirl.reporting.page import SCRIPT, hash_of
from siirl.reporting.report_page import write_report
from tests.browser import browser_command, needs_browser
from tests.hostile_run import HOSTILE, write_hostile_run

# Of the templates and of the diagrams. `#` is what a page refers to in itself.
TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "small",
        "p",
        "span",
        "i",
        "nav",
        "main",
        "script",
        "noscript",
        "b",
        "pre",
        "code",
        "a",
    ),
    *(
        "div",
        "figure",
        "figcaption",
        "video",
        "details",
        "summary",
        "table",
        "tbody",
        "tr",
        "th",
        "td",
    ),
    *(
        "svg",
        "defs",
        "g",
        "path",
        "marker",
        "rect",
        "text",
        "line",
        "polyline",
        "polygon",
        "circle",
    ),
}
LINK = re.compile(r"#[\w-]+|videos/[A-Za-z0-9_.~/%-]*|data:video/mp4;base64,[A-Za-z0-9+/]*={0,2}")
POINTS_AT_EVERYTHING = """
for (const chart of document.querySelectorAll(".chart"))
  for (const key of ["Home", "End"]) chart.dispatchEvent(new KeyboardEvent("keydown", {key}));
for (const name of document.querySelectorAll("[data-help]"))
  name.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
"""
LIMIT_S = 1500  # for a hang; a second on an idle machine


class Page(html.parser.HTMLParser):
    """Elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._inside = tag
        if tag == "script":
            self.scripts.append("")
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def check(page: Page) -> None:
    """Nothing but the page's own elements and its own script, no attribute that runs something, no
    link that leads elsewhere.
    """
    assert page.tags <= TAGS, page.tags - TAGS
    assert page.scripts == [SCRIPT.read_text()]
    assert not [
        name
        for name, _ in page.attributes
        if name.startswith("on") or name in ("srcdoc", "formaction", "action", "autofocus")
    ]
    links = [value for name, value in page.attributes if name.rpartition(":")[2] in ("href", "src")]
    assert not [link for link in links if not LINK.fullmatch(link)]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.one_of(
        st.text(min_size=1),
        st.lists(st.sampled_from([*HOSTILE, *"<>\"'&`=/ $\n"]), min_size=1).map("".join),
    )
)
def test_any_text_in_a_run_stays_text(tmp_path: Path, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(tmp_path / "run")
    write_hostile_run(tmp_path / "run", text)
    check(Page(write_report(tmp_path / "run").read_text()))


def test_hostile_texts_are_shown_as_they_are(tmp_path: Path) -> None:
    write_hostile_run(tmp_path, *HOSTILE)
    page = Page(write_report(tmp_path).read_text())
    check(page)
    for text in HOSTILE[:-1]:  # the last holds what no file can
        assert page.text.count(text) >= 10, text


def test_a_page_declares_that_only_its_own_script_may_run(tmp_path: Path) -> None:
    write_hostile_run(tmp_path, "push")
    (policy,) = [
        value
        for name, value in Page(write_report(tmp_path).read_text()).attributes
        if value.startswith("default-src")
    ]
    assert policy.startswith("default-src 'none'; ")
    (scripts,) = [part for part in policy.split("; ") if part.startswith("script-src")]
    assert scripts == f"script-src '{hash_of(SCRIPT.read_text())}'"


def shown_by_a_browser(page: Path, home: Path) -> str:
    """The page's elements after everything in it had its chance to run."""
    command = [
        *browser_command(home),
        "--virtual-time-budget=2000",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(
        command,
        env=os.environ | {"HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return done.stdout


@needs_browser
def test_a_browser_runs_nothing_of_a_hostile_run(tmp_path: Path) -> None:
    """As it is, and without the page's policy: the escaping alone has to hold. There a further
    script points at every chart and every name, so that their texts are shown.
    """
    folder = tmp_path / "run"
    write_hostile_run(folder, *HOSTILE)
    report = write_report(folder)
    bare = report.with_name("bare.html")
    page = re.sub(r"<meta http-equiv=.Content[^>]*>", "", report.read_text())
    bare.write_text(f"{page}<script>{POINTS_AT_EVERYTHING}</script>")
    control = report.with_name("control.html")  # that this browser would run it
    control.write_text(f"<!doctype html><title>control</title>{HOSTILE[0]}")
    for page in (report, bare):
        shown = shown_by_a_browser(page, tmp_path / page.stem)
        assert f"<title>{folder.parent.name}, {folder.name}</title>" in shown
        assert 'class="lively"' in shown  # the page's own script ran
        shown = shown.replace(f"<script>{POINTS_AT_EVERYTHING}</script>", "")
        check(Page(shown))
        assert ('class="tip shown"' in shown) == (page == bare)
        assert all(Page(shown).text.count(text) >= 10 for text in HOSTILE[:-1])
    assert "<title>owned</title>" in shown_by_a_browser(control, tmp_path / "control")


@pytest.mark.parametrize(
    "damage",
    [
        {"outcome": None},
        {"step": "one"},
        {"step": None},
        {"step": True},
        {"video": "../../../../etc/passwd"},
        {"video": "/etc/passwd"},
        {"uid": 7},
        ["a", "list"],
    ],
)
def test_a_damaged_row_of_the_videos_is_left_out_and_counted(
    tmp_path: Path, damage: dict | list
) -> None:
    write_hostile_run(tmp_path, "push")
    index = tmp_path / "videos" / "index.jsonl"
    damaged = (
        json.loads(index.read_text().splitlines()[0]) | {"uid": "damaged"} | damage
        if isinstance(damage, dict)
        else damage
    )
    index.write_text(index.read_text() + json.dumps(damaged) + "\n")
    page = Page(write_report(tmp_path).read_text())
    assert "1 damaged rows of the video index are left out." in page.text
    assert {value for name, value in page.attributes if name == "src"} == {"videos/push"}
    assert not [value for _, value in page.attributes if "passwd" in value]


def test_a_row_of_the_videos_without_an_outcome_is_left_out(tmp_path: Path) -> None:
    write_hostile_run(tmp_path, "push")
    (tmp_path / "videos" / "index.jsonl").write_text('{"step": 1, "uid": "a", "video": "a.mp4"}\n')
    assert "1 damaged rows" in write_report(tmp_path).read_text()
