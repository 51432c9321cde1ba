"""The command on this machine, in its small form, and on one with the least installation."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from siirl.gpu_check import main
from siirl.gpu_checks.catalogue import CHECKS

ABSENT = ("ray", "vllm", "mujoco", "gymnasium")
SKIPPED = {
    "sync_vllm": "not installed: vllm, gymnasium",
    "pictures": "not installed: mujoco",
    "grpo_step": "not installed: gymnasium",
    "grpo_step_vllm": "not installed: vllm, gymnasium",
}
WITHOUT = """
import sys
for name in {absent}:
    sys.modules[name] = None
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Rows of the command where the packages `ABSENT` cannot be imported."""
    folder = tmp_path_factory.mktemp("gpu_check")
    (folder / "sitecustomize.py").write_text(WITHOUT.format(absent=ABSENT))
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    found = folder / "found.json"
    run = subprocess.run(
        [sys.executable, "-m", "siirl.gpu_check", "--minutes", "30", "--json", str(found)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(run.stdout.splitlines()) == len(CHECKS) + 1
    result = json.loads(Path(found).read_text())
    assert result["machine"]["torch"]
    return {row["name"]: row for row in result["checks"]}


def test_the_small_form_of_every_check_passes_without_ray_vllm_mujoco_and_gymnasium(
    rows: dict[str, dict],
) -> None:
    statuses = {name: (row["status"], row["reason"]) for name, row in rows.items()}
    assert statuses == {
        check.name: ("skipped", SKIPPED[check.name]) if check.name in SKIPPED else ("OK", "")
        for check in CHECKS
    }


def test_every_check_that_ran_has_figures(rows: dict[str, dict]) -> None:
    assert all(row["figures"] for name, row in rows.items() if name not in SKIPPED)


def test_updates_report_the_memory_that_the_plan_has_for_them(rows: dict[str, dict]) -> None:
    for name in ("sharded_update", "vla_lora", "vla_full", "text_update", "text_full"):
        assert 0 < rows[name]["figures"]["planned_gb"] < 1


def test_one_process_and_a_forced_group_have_the_same_gradient(rows: dict[str, dict]) -> None:
    assert rows["reduction"]["figures"]["factor_1"] == 1
    assert rows["reduction"]["figures"]["gradient_1"] < 1e-6


def test_two_processes_have_the_gradient_of_one(rows: dict[str, dict]) -> None:
    assert rows["reduction"]["figures"]["gradient_2"] < 1e-6


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in whose subfolders the names of sockets are short enough."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("number", "name", "made"),
    [
        (signal.SIGINT, "sharded_checkpoint", "siirl-checkpoint-*"),
        pytest.param(signal.SIGTERM, "grpo_step", "siirl-grpo-*", marks=pytest.mark.slow),
    ],
)
def test_a_signal_leaves_no_files_and_no_process(
    number: signal.Signals, name: str, made: str, short_path: Path
) -> None:
    command = [sys.executable, "-m", "siirl.gpu_check", "--only", name, "--minutes", "30"]
    cache = short_path / "compiled"  # which PyTorch keeps
    settings = {"TMPDIR": str(short_path), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    with subprocess.Popen(command, env={**os.environ, **settings}) as process:
        while not any(short_path.rglob(made)):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
    assert process.returncode == 128 + number
    assert {*short_path.iterdir()} <= {cache}
    assert not _processes_below(short_path)


def _processes_below(folder: Path) -> list[str]:
    """Processes with `folder` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if os.fsencode(folder) in (process / "environ").read_bytes():
                found.append(process.name)
    return found


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (".", "argument --json: . is a folder: name a file in it"),
        ("nowhere/a.json", "make it first"),
    ],
)
def test_results_without_a_place_are_refused_before_the_checks(
    file: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "device", "--json", file])
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["-1", "0", "nan", "inf", "soon"])
def test_a_budget_that_is_not_a_positive_number_is_refused(
    minutes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--minutes", minutes])
    assert end.value.code == 2
    assert "--minutes" in capsys.readouterr().err
