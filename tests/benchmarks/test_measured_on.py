"""The revision that a result names."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.measured_on import describe_machine


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for file in (tmp_path / "code.py", results / "speed.json"):
        file.write_text("1")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run([*git, *words], check=True)
    return tmp_path


def test_a_changed_result_leaves_the_revision_clean_and_changed_code_does_not(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = describe_machine()["revision"]
    (checkout / "benchmarks/results/speed.json").write_text("2")
    assert describe_machine()["revision"] == clean
    (checkout / "code.py").write_text("2")
    assert describe_machine()["revision"] == f"{clean}-dirty"
    monkeypatch.chdir(checkout / "benchmarks")
    assert describe_machine()["revision"] == f"{clean}-dirty"


def test_a_folder_that_is_no_checkout_has_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert describe_machine()["revision"] == "not a checkout"
