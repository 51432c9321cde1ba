"""Reads the pictures of a question: their forms in a row, and their decoding.

The column `images` of a prompt file has one entry per picture, in the forms of the Hub and of verl:
a path, the bytes of a file, or `{"bytes": …, "path": …}` with either. In JSON, bytes are base64. A
relative path is relative to the folder of the prompt file. In the prompt's text, `<image>` stands
for a picture.

Left out: a model's inputs (`siirl.models.seen_pictures`), and web addresses.
"""

import base64
import binascii
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

PLACEHOLDER = "<image>"
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Supported formats. Pillow knows more, but starts other programs for some."""
MAX_FILE_BYTES = 16 << 20  # the bound of a row in a prompt file
MAX_PIXELS = 1 << 26  # 8192 x 8192: 192 MiB of colours
WEB = ("http://", "https://")


@dataclass(frozen=True)
class PictureSource:
    """A picture in the form that a row gives."""

    path: str | None = None
    """The file; with `data`, its name in messages."""
    data: bytes | None = None
    """Contents of the file."""

    @classmethod
    def of(cls, entry: Any, *, folder: Path | None = None) -> "PictureSource":
        """Read an entry of `images`.

        Args:
            entry: A path, bytes, or a mapping with `path` or `bytes`.
            folder: Base of relative paths; None: the working directory.

        Raises:
            ValueError: An entry of another form.
        """
        if isinstance(entry, str):
            entry = {"path": entry}
        elif isinstance(entry, bytes):
            entry = {"bytes": entry}
        if not isinstance(entry, Mapping):
            raise ValueError(
                f"a picture must be a path, bytes, or {{bytes, path}}, got {type(entry).__name__}"
            )
        data, path = entry.get("bytes"), entry.get("path")
        if isinstance(data, str):
            data = _from_base64(data)
        if not isinstance(data, bytes | None) or not isinstance(path, str | None):
            raise ValueError("a picture's bytes must be bytes (in JSON base64), and its path text")
        if data is None and not path:
            raise ValueError("a picture has neither bytes nor a path")
        if data is None:
            path = _file_name(str(path), folder)
        return cls(path=path, data=data)

    def as_entry(self) -> dict[str, str]:
        """The inverse of `of`, in JSON's types."""
        entry = {} if self.path is None else {"path": self.path}
        if self.data is not None:
            entry["bytes"] = base64.b64encode(self.data).decode()
        return entry

    @property
    def name(self) -> str:
        """For messages."""
        return f"the picture {self.path}" if self.path else "a picture given by its bytes"

    def contents(self) -> bytes:
        """Contents of the file.

        Raises:
            ValueError: No such file, or one that is too large.
        """
        if self.data is not None:
            data = self.data
        else:
            path = Path(str(self.path))
            if not path.is_file():
                raise ValueError(f"there is no file {path} for {PLACEHOLDER}")
            with path.open("rb") as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(
                f"{self.name} has more than {MAX_FILE_BYTES >> 20} MiB; store a smaller one"
            )
        return data

    def open(self) -> Image.Image:
        """The decoded picture in RGB, upright, with white behind transparent parts.

        Raises:
            ValueError: Not a picture of a known format, a damaged one, or one that is too large.
        """
        data = self.contents()
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
                width, height = picture.size
                if width * height > MAX_PIXELS:
                    raise ValueError(
                        f"{self.name} has {width} x {height} pixels, more than {MAX_PIXELS}; "
                        "store a smaller one"
                    )
                return _in_rgb(ImageOps.exif_transpose(picture))
        except UnidentifiedImageError as error:  # its text has a memory address
            raise ValueError(
                f"{self.name} is not a readable picture; known formats: {', '.join(FORMATS)}"
            ) from error
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(
                f"{self.name} is not a readable picture ({error}); known formats: "
                f"{', '.join(FORMATS)}"
            ) from error


def picture_sources(
    value: Any, *, prompt: Sequence[Mapping[str, Any]], folder: Path | None = None
) -> tuple[PictureSource, ...]:
    """The pictures of a row.

    Args:
        value: The column `images`: a list of entries, one entry, or None for no picture.
        prompt: The row's messages.
        folder: Base of relative paths; None: the working directory.

    Raises:
        ValueError: An entry of another form, or a number of pictures that differs from the prompt's
            placeholders.
    """
    entries = [] if value is None else value
    if isinstance(entries, str | bytes | Mapping):
        entries = [entries]
    if not isinstance(entries, Sequence):
        raise ValueError(f"images must be a list of pictures, got {type(value).__name__}")
    found = tuple(PictureSource.of(entry, folder=folder) for entry in entries)
    placeholders = sum(str(entry["content"]).count(PLACEHOLDER) for entry in prompt)
    if placeholders != len(found):
        raise ValueError(
            f"the prompt has {PLACEHOLDER} {placeholders} times, but images has {len(found)} "
            "pictures: the numbers must be equal"
        )
    return found


def pictures_digest(pictures: Sequence[PictureSource]) -> str:
    """Digest of the contents of some pictures.

    Raises:
        ValueError: See `PictureSource.contents`.
    """
    whole = hashlib.sha256()
    for picture in pictures:
        whole.update(hashlib.sha256(picture.contents()).digest())
    return whole.hexdigest()


def _file_name(path: str, folder: Path | None) -> str:
    if path.startswith(WEB):
        raise ValueError(f"{path} is a web address; download the picture and give the file's path")
    file = Path(path.removeprefix("file://")).expanduser()
    return str(file if folder is None else folder / file)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"a picture's bytes are not base64 ({error})") from error


def _in_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # grey of 16 bits, which Pillow would clip at 255
        picture = Image.fromarray((np.asarray(picture) // 257).astype(np.uint8))
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    opaque = Image.new("RGB", picture.size, "white")
    layer = picture.convert("RGBA")
    opaque.paste(layer, mask=layer)
    return opaque
