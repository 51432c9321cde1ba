"""Untrusted archives: bounded before they are unpacked, each tested with a real bomb of 600 MB."""

import json
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from envs.archives import check_archive, check_stored, read_entry

MEGABYTE = 10**6
BOMB_BYTES = 600 * MEGABYTE
LEAST_EFFECT = 100 * MEGABYTE  # memory that reading may add to that of the process
READERS = {
    "initial states": ("envs.libero.initial_states", "module.read_initial_states(file)"),
    "demonstrations": (
        "siirl.engine.reward_manager.demonstration_clips",
        "module.load_demonstration_clips(str(file))",
    ),
    "a checkpoint's state": ("siirl.dag_worker.plain_state", "module.read_state(file)"),
    "a projector of proprioception": (
        "siirl.models.openvla_checkpoint",
        "module._separate_module(file.parent, module.STATE_PROJECTOR, "
        "module.SEPARATE[module.STATE_PROJECTOR])",
    ),
    "weights of V-JEPA 2": ("vjepa.release_checkpoint", "module._read(file)"),
}
PROGRAM = """
import importlib, json, resource, sys
from pathlib import Path

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

readers = {name: (importlib.import_module(module), call) for name, (module, call) in READERS.items()}
for name, (module, call) in readers.items():
    file, before, refusal = Path(sys.argv[1]), peak(), "none"
    try:
        eval(call)
    except (ValueError, RuntimeError) as error:
        refusal = str(error)
    print(json.dumps([name, refusal, peak() - before]))
"""


def bomb(path: Path, *, size: int = BOMB_BYTES, name: str = "archive/data.pkl") -> Path:
    """A zip archive of 600 kB with so many zeros, which is no pickle either."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(name, "w") as entry,
    ):
        for _ in range(size // MEGABYTE):
            entry.write(bytes(MEGABYTE))
    return path


@pytest.fixture(scope="module")
def bombs(tmp_path_factory) -> Path:
    """A bomb under a name that each reader would look for."""
    return bomb(tmp_path_factory.mktemp("bombs") / "proprio_projector--1_checkpoint.pt")


def bound_memory() -> None:
    """A reader that unpacks it nevertheless ends its own process, not the machine."""
    resource.setrlimit(resource.RLIMIT_DATA, (6_000 * MEGABYTE, 6_000 * MEGABYTE))


@pytest.fixture(scope="module")
def ends(bombs, repository) -> dict[str, tuple[str, int]]:
    """What each reader says, and the bytes that it adds to the peak of a process."""
    command = [sys.executable, "-c", f"READERS = {READERS!r}{PROGRAM}", str(bombs)]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=repository,
        preexec_fn=bound_memory,
    )
    assert ended.returncode == 0, ended.stderr
    return {
        name: (refusal, more)
        for name, refusal, more in map(json.loads, ended.stdout.split("\n")[:-1])
    }


@pytest.mark.parametrize("reader", READERS)
def test_a_small_file_that_unpacks_to_600_megabytes_is_refused_without_the_memory(reader, ends):
    refusal, more = ends[reader]
    assert "would unpack to" in refusal
    assert more < LEAST_EFFECT


def test_the_sum_of_all_entries_counts(tmp_path):
    with zipfile.ZipFile(tmp_path / "two.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(600_000))
        archive.writestr("b", bytes(600_000))
    check_archive(tmp_path / "two.zip", most_bytes=1_200_000)
    with pytest.raises(
        ValueError,
        match=r"two\.zip \(0\.0 MiB\) would unpack to 1\.1 MiB, more than the limit of 1\.0 MiB",
    ):
        check_archive(tmp_path / "two.zip", most_bytes=2**20)


def test_an_archive_with_a_false_size_yields_no_more_than_that_size(tmp_path):
    """The directory says 10 bytes, and the entry has a million: reading ends there, and the
    checksum does not fit.
    """
    path = bomb(tmp_path / "lie.zip", size=MEGABYTE)
    content = path.read_bytes()
    path.write_bytes(content.replace(MEGABYTE.to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(ValueError, match="not a readable zip archive"):
        read_entry(path, ending="/data.pkl", most_bytes=1000)


@pytest.mark.parametrize("damage", [slice(0, 0), slice(0, 40), slice(20, None)])
def test_damage_of_any_kind_is_a_value_error(tmp_path, damage):
    path = bomb(tmp_path / "damaged.zip", size=MEGABYTE)
    path.write_bytes(path.read_bytes()[damage])
    with pytest.raises(ValueError, match="not a readable zip archive"):
        read_entry(path, ending="/data.pkl", most_bytes=2 * MEGABYTE)


def test_uncompressed_entries_are_accepted(tmp_path):
    with zipfile.ZipFile(tmp_path / "stored.pt", "w") as archive:
        archive.writestr("archive/data.pkl", bytes(100_000))
    check_stored(tmp_path / "stored.pt")
    (tmp_path / "old.pt").write_bytes(b"\x80\x02 of PyTorch before 1.6")
    check_stored(tmp_path / "old.pt")
