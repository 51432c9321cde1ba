"""The committed table of perturbations is that of the committed numbers."""

import json

from benchmarks.perturbations import RESULTS, text


def test_the_table_shows_the_numbers_of_the_result_file():
    runs = json.loads(RESULTS.read_text())["runs"]
    assert RESULTS.with_suffix(".md").read_text() == text(runs)
