"""Tables for users of other libraries name keys and groups that exist here."""

import re
from pathlib import Path

import pytest

from siirl.params.aliases import ALIASES
from siirl.params.config_groups import options
from siirl.params.schema import find_key, keys_of
from siirl.params.training_args import SiiRLArguments

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "coming_from").glob("*.md"))
KEYS = {key.place: key for key in keys_of(SiiRLArguments)}
OLD = {key for key, _ in ALIASES}


def named_here(page: Path) -> list[str]:
    """Code in the second column of a page's first table, or in the first where it says the same."""
    rows = [line.split(" | ") for line in page.read_text().split("\n\n| idea")[0].splitlines()]
    cells = [
        row[0] if row[1].strip() in ("the same", "the same |") else row[1]
        for row in rows
        if len(row) > 1
    ]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_keys_of_a_table_exist(page: Path) -> None:
    unknown = []
    for word in (word for code in named_here(page) for word in code.split()):
        name, equals, value = word.partition("=")
        is_group = bool(equals) and value in options().get(name, ())
        is_key = "." in name and name.split(".")[0] in {place.split(".")[0] for place in KEYS}
        if is_key and not is_group and find_key(name, KEYS) is None and name not in OLD:
            unknown.append(word)
    assert unknown == []
