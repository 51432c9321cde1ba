"""Embeds videos in a page as data: URIs, so that a copied page still plays them.

Left out: links to the files (siirl.reporting.report_page).
"""

import base64
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 18_000_000
"""Bytes of all embedded videos: 24 MB as base64, so that a mail with the page stays below 25 MB."""


def embedded_videos(
    videos: Iterable[Mapping[str, Any]], *, folder: Path, most_bytes: int = MOST_BYTES
) -> dict[str, str]:
    """The data: URI of each video by its path below `folder`.

    Videos are taken in order; missing files and those beyond `most_bytes` are left out.
    """
    found: dict[str, str] = {}
    room = most_bytes
    for path in dict.fromkeys(video["video"] for video in videos):
        file = folder / path
        if not os.path.isfile(file) or not file.resolve().is_relative_to(folder.resolve()):
            continue
        size = file.stat().st_size
        if size <= room:
            found[path] = f"data:video/mp4;base64,{base64.b64encode(file.read_bytes()).decode()}"
            room -= size
    return found
