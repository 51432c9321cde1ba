"""The built site: its links have targets, and it loads nothing from other hosts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

from docs.generate import keys
from siirl.params.schema import keys_of
from siirl.params.training_args import SiiRLArguments
from tests.browser import browser, needs_browser

FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("source", "src"), ("video", "src")}


@dataclass
class Page(HTMLParser):
    """Links, fetched resources and anchors of one page."""

    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name in ("id", "name"):
                self.anchors.add(value)
            elif (tag, name) in FETCHED:
                self.fetched.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def pages(site: Path) -> dict[Path, Page]:
    found = {}
    for file in sorted(site.rglob("*.html")):
        found[file] = Page()
        found[file].feed(file.read_text())
    return found


def broken(site: Path) -> Iterator[str]:
    parsed = pages(site)
    for file, page in parsed.items():
        if file.name == "404.html":  # served from anywhere, its links are absolute
            continue
        for link in page.links + page.fetched:
            address, anchor = urldefrag(link)
            if urlparse(link).scheme:
                continue
            target = (file.parent / unquote(address)).resolve() if address else file
            target = target / "index.html" if target.is_dir() else target
            is_missing = not target.exists() or (
                anchor and target in parsed and unquote(anchor) not in parsed[target].anchors
            )
            if is_missing:
                yield f"{file.relative_to(site)}: {link}"


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path) -> None:
    assert list(broken(site)) == []


TYPED = """
new Promise(shown => {
    const typed = document.querySelector(".md-search__input")
    typed.focus()
    const ask = setInterval(() => {
        typed.value = "advantage"
        typed.dispatchEvent(new Event("input", { bubbles: true }))
        typed.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }))
        const found = document.querySelectorAll(".md-search-result__item")
        if (found.length) { clearInterval(ask); shown(found.length) }
    }, 500)
    setTimeout(() => shown(0), 300000) // only a hang takes longer
})
"""
"""Types into the search until there are results; the index is read meanwhile."""


@needs_browser
def test_pages_that_are_opened_from_a_folder_can_be_searched(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        page.open(site / "tutorials" / "index.html", width=1280, height=800)
        assert page.run(TYPED) > 1


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    from_elsewhere = [
        (file.name, address)
        for file, page in pages(site).items()
        for address in page.fetched
        if address.startswith(("http:", "https:", "//")) and "canonical" not in address
    ]
    assert from_elsewhere == []
    sheets = [
        file.name for file in site.rglob("*.css") if "url(http" in file.read_text(errors="ignore")
    ]
    assert sheets == []


def test_the_reference_has_every_configuration_key(site: Path) -> None:
    shown = pages(site)[site / "reference" / "keys.html"].anchors
    keys = {key.place for key in keys_of(SiiRLArguments) if not key.metadata.get("derived")}
    assert keys <= shown


def test_conditions_of_keys_hold_no_value_of_a_job() -> None:
    page = keys.page()
    conditions = [line for line in page.splitlines() if line.strip().startswith("*Read in*")]
    assert len(conditions) > 200
    assert not [line for line in conditions if "{" in line or "this job" in line]
    of_images = page.partition("(#env.image_size)")[2].partition("*Read in*: ")[2]
    assert of_images.startswith("`env=` `metaworld`, `libero`.")
