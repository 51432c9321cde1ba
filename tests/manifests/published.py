"""Manifests of published checkpoints: names, shapes and types of their tensors, with the source.

A pattern `blocks.{0..23}.norm1.weight` stands for 24 tensors of one shape. `write_headers` makes
files of the published size that occupy no disk: their headers are whole, and their tensors are a
hole.
"""

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(file.stem for file in FOLDER.glob("*.json")))
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
STORED = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}
"""Name in safetensors and bytes of a number."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Manifest:
    """Published names, shapes and types of a model's weights."""

    content: Mapping[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The published config.json, as far as it decides about shapes."""
        return dict(self.content["config"])

    @property
    def dtype(self) -> str:
        """Type of most tensors."""
        return str(self.content["dtype"])

    def types(self) -> dict[str, str]:
        """Name to type of every tensor."""
        single = self.content.get("float32", ())
        return {name: "float32" if name in single else self.dtype for name in self.shapes()}

    def shapes(self) -> Shapes:
        """Name to shape of every tensor."""
        return {
            name: tuple(shape)
            for pattern, shape in self.content["tensors"].items()
            for name in _expanded(pattern)
        }


def read_manifest(name: str) -> Manifest:
    """The manifest `NAME.json` of this folder."""
    return Manifest(json.loads((FOLDER / f"{name}.json").read_text()))


def write_headers(manifest: Manifest, folder: Path, *, files: int = 4) -> Path:
    """Write config.json and safetensors files with an index, whose tensors are holes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(manifest.config))
    shapes = manifest.shapes()
    placed = {}
    for number, names in enumerate(_cut(list(shapes), files), start=1):
        file = folder / f"model-{number:05d}-of-{files:05d}.safetensors"
        _write_hollow(file, {name: shapes[name] for name in names}, types=manifest.types())
        placed |= dict.fromkeys(names, file.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder


def _expanded(pattern: str) -> Iterator[str]:
    found = RANGE.search(pattern)
    if found is None:
        yield pattern
        return
    first, last = map(int, found.groups())
    for number in range(first, last + 1):
        yield pattern.replace(found.group(), str(number))


def _cut(names: list[str], parts: int) -> list[list[str]]:
    size = -(-len(names) // parts)
    return [names[start : start + size] for start in range(0, len(names), size)]


def _write_hollow(file: Path, shapes: Shapes, *, types: Mapping[str, str]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        stored, size = STORED[types[name]]
        start, end = end, end + size * prod(shape)
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(content)) + content)
        stream.truncate(stream.tell() + end)
