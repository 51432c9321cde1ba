"""A disk that is full, or becomes full or read-only during a run: the run ends with a message,
leaves no process, and keeps its previous checkpoint.

The disk is a tmpfs of a few megabytes, mounted for the test.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_run import START_S, RealRun

from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint

ENDLESS = ("trainer.total_steps=100000", "cluster=local")
FAILED, REFUSED = 1, 2
MEGABYTE, BLOCK = 1 << 20, 4096


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A sparse file system of 256 MB; more than the plan requires."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path, *, leave: int) -> None:
    """Leave only so many bytes free."""
    with (disk / "filler").open("ab", buffering=0) as stream:
        while (free := shutil.disk_usage(disk).free) > leave + BLOCK:
            stream.write(b"\0" * min(MEGABYTE, (free - leave) // BLOCK * BLOCK))


def keep_full(disk: Path, run: RealRun, *, leave: int) -> None:
    """Fill the disk until the run ends: when it writes a checkpoint, it may make room by deleting
    its oldest.
    """
    deadline = time.monotonic() + START_S
    while run.process.poll() is None and time.monotonic() < deadline:
        fill(disk, leave=leave)
        time.sleep(0.05)


def check_failed_in_words(run: RealRun) -> None:
    assert run.wait() == FAILED, run.text
    run.seconds_until_gone()
    assert "siirl: the run failed: " in run.text
    assert "No space left on device" in run.text
    assert "Traceback" not in run.text
    newest = resolve_checkpoint(run.folders[0])
    read_manifest(newest)  # every file of it is whole
    assert f"The last checkpoint is {newest}" in run.text


@pytest.mark.slow  # a whole run, about ten seconds on idle cores
@pytest.mark.parametrize(
    "leave", [0, 10 * BLOCK], ids=["nothing fits", "a checkpoint fits in part"]
)
def test_a_disk_that_fills_up_during_a_run(small_disk: Path, start_run, leave: int) -> None:
    run = start_run(*ENDLESS, f"trainer.output_dir={small_disk}")
    run.outputs = small_disk
    run.wait_until(lambda: any(small_disk.glob("*/*/checkpoints/latest")))
    keep_full(small_disk, run, leave=leave)
    check_failed_in_words(run)


@pytest.mark.slow  # a whole run, about ten seconds on idle cores
def test_a_disk_that_becomes_read_only_during_a_run(small_disk: Path, start_run) -> None:
    run = start_run(*ENDLESS, f"trainer.output_dir={small_disk}")
    run.outputs = small_disk
    run.wait_until(lambda: any(small_disk.glob("*/*/checkpoints/latest")))
    subprocess.run(
        ["mount", "-o", "remount,ro,size=256m", str(small_disk)], check=False, capture_output=True
    )
    if (
        subprocess.run(
            ["touch", str(small_disk / "probe")], capture_output=True, check=False
        ).returncode
        == 0
    ):
        pytest.skip("a file system with open files cannot be made read-only here")
    assert run.wait() == FAILED, run.text
    assert "Read-only file system" in run.text and "Traceback" not in run.text


def test_a_read_only_disk_is_refused_before_any_process_starts(small_disk: Path, start_run) -> None:
    subprocess.run(
        ["mount", "-o", "remount,ro,size=256m", str(small_disk)], check=True, capture_output=True
    )
    run = start_run(*ENDLESS, f"trainer.output_dir={small_disk}/runs")
    assert run.wait() == REFUSED, run.text
    assert (
        f"trainer.output_dir={small_disk}/runs cannot be written: Read-only file system" in run.text
    )
    run.seconds_until_gone()


def test_a_full_disk_is_refused_before_any_process_starts(small_disk: Path, start_run) -> None:
    fill(small_disk, leave=30 * MEGABYTE)
    run = start_run(*ENDLESS, f"trainer.output_dir={small_disk}/runs")
    assert run.wait() == REFUSED, run.text
    assert "MB free, but the run needs about" in run.text
    assert [entry.name for entry in small_disk.iterdir()] == ["filler"]
