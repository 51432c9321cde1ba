"""Zip archives from elsewhere: what they unpack to is bounded before anything is unpacked.

A megabyte of zeros in a zip takes a kilobyte, so a small file may fill the memory. An archive says
what each entry unpacks to, and readers (Python's and PyTorch's) unpack no more of it than that: the
sum of these sizes is the bound. Left out: what the content asks for when it is read, such as the
shape of an array.
"""

import struct
import zipfile
import zlib
from pathlib import Path

MEBIBYTE = 2**20
DAMAGE = (
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a zip archive raises for damage, a method that is not known, or encryption."""


def check_archive(path: Path, *, most_bytes: int) -> None:
    """Refuse an archive whose entries unpack to more than `most_bytes`; only its directory is read.

    Raises:
        ValueError: It does, or it is no zip archive; the message names sizes and bound.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check(archive, path, most_bytes)
    except DAMAGE as error:
        raise ValueError(f"{path} is no readable zip archive ({error}).") from error


def check_stored(path: Path) -> None:
    """Refuse an archive that unpacks to more than its own size, as no file that `torch.save` writes
    does: it compresses nothing.

    Raises:
        ValueError: It does.
    """
    if zipfile.is_zipfile(path):  # files of PyTorch before 1.6 are not
        check_archive(path, most_bytes=path.stat().st_size)


def read_entry(path: Path, *, ending: str, most_bytes: int) -> bytes:
    """The content of the first entry whose name ends so, from an archive within `most_bytes`.

    Raises:
        ValueError: The archive is damaged, unpacks to more, or has no such entry.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check(archive, path, most_bytes)
            names = [name for name in archive.namelist() if name.endswith(ending)]
            if not names:
                raise ValueError(f"{path} has no entry {ending!r}.")
            return archive.read(names[0])
    except DAMAGE as error:
        raise ValueError(f"{path} is no readable zip archive ({error}).") from error


def _check(archive: zipfile.ZipFile, path: Path, most_bytes: int) -> None:
    unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > most_bytes:
        raise ValueError(
            f"{path} ({_mebibytes(path.stat().st_size)}) would unpack to {_mebibytes(unpacked)}, "
            f"and at most {_mebibytes(most_bytes)} are "
            "taken: it is damaged, or not what it says."
        )


def _mebibytes(size: int) -> str:
    return f"{size / MEBIBYTE:.1f} MiB"
