"""The page of benchmarks states what a result file records, and names what it does not; the README
quotes what the recorded demo printed.
"""

import json
import re
from pathlib import Path

import pytest

from docs.generate import benchmarks
from siirl.jobs.training_run import show_summary

SECTIONS = re.split(r"^## ", benchmarks.page(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_a_section_has_a_command_and_contents_or_says_that_it_has_none(section: str) -> None:
    assert re.findall(r"\bNone\b", section) == []
    assert re.search("python -m |make ", section) or "does not record its command" in section
    after = section.partition("</details>")[2]
    assert after.strip() != ""


def test_missing_facts_are_named_and_repeated_measurements_have_a_median(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"engine": "hf", "rate": {"even": [1, 2, 9]}},
        {"engine": "vllm", "rate": {"even": [4]}},
    ]
    (tmp_path / "engines.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path)
    page = benchmarks.page()
    assert "The file does not record its command." in page
    assert "machine, versions and revision are not recorded" in page
    assert "| engine | rate: even, median |\n| --- | --- |\n| hf | 2 |\n| vllm | 4 |" in page


def test_the_readme_quotes_the_table_of_the_recorded_demo(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    demo = json.loads((benchmarks.RESULTS / "demo.json").read_text())
    show_summary(Path("run"), report=Path("page"), evaluated=[demo["before"], demo["after"]])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    quoted = re.search(r"```text\n(.*?)```", (repository / "README.md").read_text(), re.DOTALL)
    assert quoted is not None
    assert quoted[1].splitlines() == printed[: printed.index("run folder  run")]
