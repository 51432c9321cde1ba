"""The doctor: present and missing parts, line by line, and its exit status."""

import importlib.metadata
from pathlib import Path

import pytest

from siirl import doctor
from siirl.doctor import Subject, examine, installed, packages, pinned
from siirl.errors import MissingAssetError


def absent() -> str:
    raise MissingAssetError("not here. Type: make it.")


def test_a_line_each_with_the_remedy_and_the_status_of_what_the_default_job_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        examine(
            [Subject("Python", lambda: "3.11"), Subject("wandb", absent, "trainer.logger=wandb")]
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines() == [
        "ok       Python       3.11",
        "missing  wandb        not here. Type: make it. Only trainer.logger=wandb needs it.",
        "The default job can run: siirl train",
    ]
    assert examine([Subject("OpenGL", absent), Subject("Ray", lambda: "starts")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "missing  OpenGL       not here. Type: make it.",
        "ok       Ray          starts",
        "1 missing: the default job cannot run here.",
    ]


def test_every_writer_that_needs_a_package_is_a_subject() -> None:
    subjects = {check.subject for check in doctor.checks()}
    assert {"wandb", "mlflow", "trackio"} <= subjects


def test_a_part_that_two_subjects_lack_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert examine([Subject("weights", absent), Subject("memory", absent)]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "missing  weights      not here. Type: make it.",
        "missing  memory       for the same reason as weights.",
    ]


def test_pins_are_read_without_comments() -> None:
    assert list(pinned("# a lock\nnumpy==2.3.5  # why\n\ntorch==2.13.0\n")) == [
        ("numpy", "2.3.5"),
        ("torch", "2.13.0"),
    ]


def test_the_label_of_a_build_is_not_another_version() -> None:
    assert installed("torch") == importlib.metadata.version("torch").partition("+")[0]
    assert installed("no-such-package-anywhere") is None


def test_another_version_and_a_missing_package_are_reported_with_both_versions(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"numpy=={installed('numpy')}\npillow==0.1\nno-such-package==1.0\n")
    with pytest.raises(MissingAssetError) as lack:
        packages(lock)
    assert str(lack.value).startswith(
        f"pillow {installed('pillow')} instead of 0.1, no-such-package not installed instead of "
        "1.0. Type: make"
    )


def test_this_environment_is_that_of_the_lock() -> None:
    assert packages().startswith("all ")


def test_the_shipped_weights_are_whole() -> None:
    assert doctor.weights() == "assets/tiny_vla, reward.encoder=tiny"


@pytest.mark.slow  # starts Ray, builds the policy, locks a program in
def test_the_whole_examination_of_a_machine_on_which_the_tests_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == [check.subject for check in doctor.checks()]
    assert {line.split()[1] for line in lines[:-1] if line.startswith("ok")} >= {
        "Python",
        "packages",
        "weights",
        "OpenGL",
        "memory",
        "Ray",
    }
