"""Files of a killed writer are removed at the next start; those of a running one stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from siirl.dag_worker.temporary_checkpoint import remove_unfinished, unfinished_folder
from siirl.jobs.training_run import remove_unfinished_files
from siirl.params.parser import parse_config

WRITER = """
import sys, time
from pathlib import Path
from siirl.dag_worker.temporary_checkpoint import POINTER, unfinished_folder
folder = Path(sys.argv[1])
with unfinished_folder(folder) as unfinished:
    (unfinished / "model.safetensors").write_text("half")
    (folder / POINTER).write_text("step_00000002")
    print("writing", flush=True)
    time.sleep(1000)
"""


def start_writer(folder: Path) -> subprocess.Popen:
    folder.mkdir(parents=True)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
    return writer


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run's folder of checkpoints, whose writer was killed."""
    folder = tmp_path / "grpo" / "2026-01-01_00-00-00" / "checkpoints"
    writer = start_writer(folder)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert len(list(folder.iterdir())) == 3
    return folder


def test_unfinished_files_of_a_killed_writer_are_removed(killed: Path) -> None:
    remove_unfinished(killed)
    assert list(killed.iterdir()) == []


def test_unfinished_files_of_a_living_writer_stay(tmp_path: Path) -> None:
    writer = start_writer(tmp_path / "checkpoints")
    try:
        remove_unfinished(tmp_path / "checkpoints")
        assert len(list((tmp_path / "checkpoints").iterdir())) == 3
    finally:
        writer.kill()
        writer.wait()


def test_the_next_start_of_the_experiment_removes_unfinished_files(killed: Path) -> None:
    new = killed.parent.parent / "2026-01-02_00-00-00"
    remove_unfinished_files(parse_config([]).trainer, new)
    assert list(killed.iterdir()) == []


def test_resuming_from_another_experiment_removes_its_unfinished_files(
    killed: Path, tmp_path: Path
) -> None:
    (killed / "latest").write_text("step_00000001\n")
    (killed / "step_00000001").mkdir()
    (killed / "step_00000001" / "manifest.json").write_text("{}")
    remove_unfinished_files(
        parse_config([f"trainer.resume={killed.parent}"]).trainer,
        tmp_path / "other" / "2026-01-02_00-00-00",
    )
    assert sorted(path.name for path in killed.iterdir()) == ["latest", "step_00000001"]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), unfinished_folder(tmp_path) as unfinished:
        (unfinished / "half").touch()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
