"""Makes a folder of stand-in assets: all files that the five suites load, generated from
primitives, in the layout of the benchmark's assets.

LIBERO's classes read it unchanged. Tasks, initial states and predicates work on it; shapes, masses
and images differ, so success rates on stand-ins are not LIBERO scores.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from envs.libero.folders import cache_folder
from envs.libero.stand_in.fixtures import ARTICULATED_FIXTURES, TURBOSQUID_FIXTURES
from envs.libero.stand_in.geometry import Colour, Thing, mjcf
from envs.libero.stand_in.objects import HOPE_OBJECTS, SCANNED_OBJECTS, TURBOSQUID_OBJECTS
from envs.libero.stand_in.scenes import FLOOR_TEXTURES, WALL_TEXTURES, scenes

FOLDERS: dict[str, tuple[Thing, ...]] = {
    "stable_hope_objects": HOPE_OBJECTS,
    "stable_scanned_objects": SCANNED_OBJECTS,
    "turbosquid_objects": (*TURBOSQUID_OBJECTS, *TURBOSQUID_FIXTURES),
}
TEXTURE_SIZE = 64  # pixels; flat patterns need no more


def stand_in_folder() -> Path:
    """The folder of stand-in assets in the cache, written at the first call; its name contains a
    digest of the content.
    """
    files = dict(stand_in_files())
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(f"{path}\0{content}\0".encode())
    folder = cache_folder() / f"stand-ins-{digest.hexdigest()[:12]}"
    if not folder.is_dir():
        _write(folder, files)
    return folder


def stand_in_files() -> Iterator[tuple[str, str | tuple[Colour, Colour]]]:
    """Content by path in the folder: MJCF text, or a texture's two colours."""
    for folder, things in FOLDERS.items():
        for thing in things:
            yield f"{folder}/{thing.name}/{thing.name}.xml", mjcf(thing)
    for thing in ARTICULATED_FIXTURES:
        yield f"articulated_objects/{thing.name}.xml", mjcf(thing)
    for name, text in scenes().items():
        yield f"scenes/{name}", text
    for name, colours in (FLOOR_TEXTURES | WALL_TEXTURES).items():
        yield f"textures/{name}", colours


def _write(folder: Path, files: dict[str, str | tuple[Colour, Colour]]) -> None:
    """Write the folder atomically: of servers that start at the same time, the first one wins."""
    draft = Path(tempfile.mkdtemp(dir=folder.parent))
    for path, content in files.items():
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            (draft / path).write_text(content)
        else:
            _write_tiles(draft / path, content)
    try:
        os.rename(draft, folder)
    except OSError:  # it exists by now
        shutil.rmtree(draft)


def _write_tiles(path: Path, colours: tuple[Colour, Colour]) -> None:
    """Four tiles in two colours."""
    from PIL import Image

    half = np.arange(TEXTURE_SIZE) < TEXTURE_SIZE // 2
    other = half[:, None] ^ half[None, :]
    pixels = np.where(other[..., None], colours[0], colours[1])
    Image.fromarray((255 * pixels).round().astype(np.uint8)).save(path)
