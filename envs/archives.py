"""Bounds the unpacked size of untrusted zip archives before unpacking.

A megabyte of zeros takes a kilobyte in a zip, so a small file may fill the memory. The archive
declares each entry's size, and readers (Python's and PyTorch's) unpack no more: the sum of these
sizes is bounded. Left out: memory that the content requests when it is read, such as an array's
shape.
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
"""Exceptions of reading a zip archive that is damaged, encrypted or of an unknown method."""


def check_archive(path: Path, *, most_bytes: int) -> None:
    """Refuse an archive whose entries unpack to more than `most_bytes`; reads only its directory.

    Raises:
        ValueError: It is too large or not a zip archive; the message has sizes and bound.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check(archive, path, most_bytes)
    except DAMAGE as error:
        raise ValueError(f"{path} is not a readable zip archive ({error}).") from error


def check_stored(path: Path) -> None:
    """Refuse an archive that unpacks to more than its own size; `torch.save` does not compress.

    Raises:
        ValueError: It unpacks to more.
    """
    if zipfile.is_zipfile(path):  # files of PyTorch before 1.6 are not zip archives
        check_archive(path, most_bytes=path.stat().st_size)


def read_entry(path: Path, *, ending: str, most_bytes: int) -> bytes:
    """Read the first entry whose name ends in `ending`, from an archive within `most_bytes`.

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
        raise ValueError(f"{path} is not a readable zip archive ({error}).") from error


def _check(archive: zipfile.ZipFile, path: Path, most_bytes: int) -> None:
    unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > most_bytes:
        raise ValueError(
            f"{path} ({_mebibytes(path.stat().st_size)}) would unpack to {_mebibytes(unpacked)}, "
            f"more than the limit of {_mebibytes(most_bytes)}: it is damaged or not such a file."
        )


def _mebibytes(size: int) -> str:
    return f"{size / MEBIBYTE:.1f} MiB"
