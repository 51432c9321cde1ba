"""The run folder: unique, tested by writing, and removed if it cannot be used."""

import errno
import importlib.metadata
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from siirl.errors import CheckpointError, ConfigError, RunFailed
from siirl.params import SiiRLArguments
from siirl.params.parser import parse_config
from siirl.reporting.origin import command_line, read_origin
from siirl.reporting.run_folder import run_folder

NOON = datetime(2026, 11, 21, 12, 0, 0)


def config_for(output_dir: Path | str) -> SiiRLArguments:
    return parse_config([f"trainer.output_dir={output_dir}", "trainer.experiment_name=name"])


def make_run_folder(config: SiiRLArguments, **arguments: Any) -> Path:
    """The folder of a run that has ended well."""
    with run_folder(config, **arguments) as folder:
        return folder


def test_a_run_folder_is_named_by_experiment_and_time_and_holds_the_configuration(
    tmp_path: Path,
) -> None:
    folder = make_run_folder(config_for(tmp_path), needed_bytes=0, now=lambda: NOON)
    assert folder == tmp_path / "name" / "2026-11-21_12-00-00"
    assert {entry.name for entry in folder.iterdir()} == {"config.yaml", "origin.json"}
    assert parse_config(config_file=folder / "config.yaml") == config_for(tmp_path)


def test_the_origin_of_a_run_names_the_command_without_paths_of_programs(tmp_path: Path) -> None:
    assert command_line(["/v/bin/python", "/v/bin/siirl", "train", "a=[1, 2]"]) == (
        "siirl train 'a=[1, 2]'"
    )
    assert command_line(["/v/bin/python", "-m", "siirl.train"]) == "python -m siirl.train"
    folder = make_run_folder(config_for(tmp_path), needed_bytes=0)
    assert read_origin(folder)["versions"]["torch"] == importlib.metadata.version("torch")
    (folder / "origin.json").unlink()
    assert read_origin(folder) == {}


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        folders = list(
            pool.map(lambda _: make_run_folder(config, needed_bytes=0, now=lambda: NOON), range(8))
        )
    assert len(set(folders)) == 8
    assert all((folder / "config.yaml").is_file() for folder in folders)


@pytest.mark.parametrize("place", ["/proc/siirl", "/sys/siirl", "/dev/null/siirl"])
def test_a_place_that_cannot_be_written_is_refused(place: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"trainer.output_dir={place} cannot be written: .* Choose another folder",
    ):
        make_run_folder(config_for(place), needed_bytes=0)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        make_run_folder(config_for(tmp_path), needed_bytes=0)


def test_too_little_space_is_refused_with_both_numbers_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 5 MB free, but the run needs about 7 MB"):
        make_run_folder(
            config_for(tmp_path / "new"),
            needed_bytes=7_000_000,
            measure_free=lambda place: 5_000_000,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 kB; the probe of 1 MB does not fit."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root; the other tests hand in the free space")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_up_is_refused_and_nothing_is_left(tiny_disk: Path) -> None:
    with pytest.raises(ConfigError, match=r"No space left on device.*Free some space"):
        make_run_folder(config_for(tiny_disk), needed_bytes=0)
    assert list(tiny_disk.iterdir()) == []


def test_a_run_that_is_refused_late_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="no such cluster"),
        run_folder(config_for(tmp_path / "new"), needed_bytes=0),
    ):
        raise ConfigError("no such cluster")
    assert list(tmp_path.iterdir()) == []


def test_earlier_files_stay(tmp_path: Path) -> None:
    earlier = make_run_folder(config_for(tmp_path), needed_bytes=0)
    with pytest.raises(ConfigError), run_folder(config_for(tmp_path), needed_bytes=0):
        raise ConfigError("no such cluster")
    assert list((tmp_path / "name").iterdir()) == [earlier]


@pytest.mark.parametrize(
    "ending", [ConfigError("too late"), KeyboardInterrupt(), ZeroDivisionError("a bug")]
)
def test_files_of_a_run_stay_and_the_resume_command_is_printed(
    tmp_path: Path, ending: BaseException
) -> None:
    """A refusal in mid-run is a failure; everything else stays what it is."""
    expected = RunFailed if isinstance(ending, ConfigError) else type(ending)
    with (
        pytest.raises(expected) as caught,
        run_folder(config_for(tmp_path), needed_bytes=0) as folder,
    ):
        (folder / "metrics.jsonl").write_text("{}")
        raise ending
    assert (folder / "metrics.jsonl").is_file()
    assert caught.value.__notes__ == [
        f"There is no checkpoint yet (trainer.save_freq)\nThe run folder is {folder}"
    ]


def test_the_note_names_the_last_checkpoint(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt) as caught,
        run_folder(config_for(tmp_path), needed_bytes=0) as folder,
    ):
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "latest").write_text("step_00000020\n")
        raise KeyboardInterrupt
    newest = folder / "checkpoints" / "step_00000020"
    assert caught.value.__notes__ == [
        f"The last checkpoint is {newest}\nResume with the same command and trainer.resume={folder}"
    ]


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ("", "The run folder is {folder}"),
        (
            "{}\n",
            "This run saved no checkpoint\nResume with the same command and trainer.resume=earlier",
        ),
    ],
)
def test_a_refused_resume_is_not_advised_again(tmp_path: Path, rows: str, note: str) -> None:
    """After its first step a refusal is of something else, such as a full disk."""
    config = config_for(tmp_path)
    config.trainer.resume = "earlier"
    with pytest.raises(RunFailed) as caught, run_folder(config, needed_bytes=0) as folder:
        (folder / "metrics.jsonl").write_text(rows)
        raise CheckpointError("The checkpoint is of another job.")
    assert caught.value.__notes__ == [note.format(folder=folder)]


def test_an_interruption_before_anything_is_written_leaves_nothing_and_reports_that(
    tmp_path: Path,
) -> None:
    with (
        pytest.raises(KeyboardInterrupt) as caught,
        run_folder(config_for(tmp_path / "new"), needed_bytes=0) as folder,
    ):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    assert caught.value.__notes__ == [f"The run folder {folder} had no results and was removed"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_failing_disk_is_reported_with_the_remedy(tmp_path: Path, number: int) -> None:
    with (
        pytest.raises(RunFailed) as caught,
        run_folder(config_for(tmp_path), needed_bytes=0) as folder,
    ):
        (folder / "metrics.jsonl").write_text("{}")
        raise OSError(number, os.strerror(number), "metrics.jsonl")
    expected = (
        f"trainer.output_dir={tmp_path} can no longer be written: {os.strerror(number)} "
        "(metrics.jsonl). Free some space."
    )
    assert str(caught.value) == expected
