"""A default that a page states behind a name is a default in the code or in a config group."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATED = re.compile(r"`(?:[\w.]+\.)?(\w+)`\s\(([0-9][0-9.]*)[),]")
NUMBER = r"[0-9][0-9_.e-]*"
CONSTANT = re.compile(rf"^([A-Z][A-Z_]+)(?:: \w+)? = ({NUMBER})", re.MULTILINE)
PYTHON = re.compile(rf"(\w+): [^=\n]+ = (?:option\(\s*)?({NUMBER}|[A-Z][A-Z_]+)")
YAML = re.compile(rf"(\w+): ({NUMBER})")


def texts(pattern: str) -> list[str]:
    return [file.read_text(encoding="utf-8") for file in sorted(ROOT.glob(pattern))]


def known_defaults() -> dict[str, set[float]]:
    """Numbers by the name of a parameter, field or key, anywhere in code and config groups."""
    sources = [text for folder in ("siirl", "envs") for text in texts(f"{folder}/**/*.py")]
    constants = dict(match for text in sources for match in CONSTANT.findall(text))
    found = [match for text in sources for match in PYTHON.findall(text)]
    found += [match for text in texts("configs/**/*.yaml") for match in YAML.findall(text)]
    known = defaultdict(set)
    for name, value in found:
        number = constants.get(value, value)
        if re.fullmatch(NUMBER, number):
            known[name].add(float(number.rstrip(".")))
    return known


KNOWN = known_defaults()
CLAIMS = [
    (page.name, name, float(number.rstrip(".")))
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for name, number in STATED.findall(page.read_text(encoding="utf-8"))
    if name in KNOWN
]


@pytest.mark.parametrize(("page", "name", "number"), CLAIMS)
def test_the_number_behind_a_name_is_a_default_of_that_name(
    page: str, name: str, number: float
) -> None:
    assert number in KNOWN[name]


def test_the_pages_state_defaults() -> None:
    assert len(CLAIMS) > 10
