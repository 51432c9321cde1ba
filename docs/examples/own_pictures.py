"""Writes questions about pictures as parquet, in verl's layout and that of the Hub.

`python own_pictures.py dots` writes the folder `dots`.
"""

import io
import random
import sys
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw
from pyarrow import Table, parquet


def picture(draw: random.Random, count: int) -> bytes:
    """A PNG with `count` red squares."""
    image = Image.new("RGB", (64, 64), "white")
    for cell in draw.sample(range(16), count):
        left, top = 16 * (cell % 4) + draw.randrange(6), 16 * (cell // 4) + draw.randrange(6)
        ImageDraw.Draw(image).rectangle((left, top, left + 9, top + 9), fill="red")
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def row(number: int) -> dict[str, Any]:
    """A question with its picture; the same number gives the same question."""
    draw = random.Random(number)
    count = draw.randrange(1, 7)
    return {
        "data_source": "my/squares",
        "prompt": [{"role": "user", "content": "<image>How many squares?"}],
        "images": [{"bytes": picture(draw, count), "path": None}],
        "reward_model": {"style": "whole", "ground_truth": str(count)},
    }


def main(folder: Path, train: int = 2000, test: int = 200) -> None:
    """Write train.parquet and test.parquet into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row(number) for number in range(train + test)]
    parquet.write_table(Table.from_pylist(rows[:train]), folder / "train.parquet")
    parquet.write_table(Table.from_pylist(rows[train:]), folder / "test.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
