"""Questions about pictures that a tiny model can learn: how many dots have a colour?

    python -m benchmarks.counted_dots dots.parquet --rows 4000 --seed 1
    python -m benchmarks.counted_dots grey.parquet --rows 4000 --seed 1 --grey

A picture has 64 x 64 pixels and up to 10 dots of three colours. The answer is 1 to 6, each equally
often, so blind guessing is right in a sixth of the cases. With `--grey` pictures are replaced by
grey noise: the control, which must not learn.
"""

import argparse
import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from envs.prompt_files import write_prompts
from envs.prompt_rows import PromptRow
from envs.question_pictures import PLACEHOLDER, PictureSource
from envs.text import message

SIDE, CELL = 64, 16
MOST = 6
MOST_OTHERS = 4
COLOURS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 70, 220)}
SOURCE = "counted_dots"


def dots_picture(random: np.random.Generator, colours: list[str]) -> NDArray[np.uint8]:
    """One dot of each colour in the list, in different cells of a grid, on light noise."""
    pixels = random.integers(215, 256, (SIDE, SIDE, 3)).astype(np.uint8)
    cells = random.permutation((SIDE // CELL) ** 2)[: len(colours)]
    down, right = np.mgrid[0:SIDE, 0:SIDE]
    for cell, colour in zip(cells.tolist(), colours, strict=True):
        radius = random.integers(4, 7)
        row, column = divmod(cell, SIDE // CELL)
        centre = random.integers(radius, CELL - radius + 1, 2) + CELL * np.array([row, column])
        inside = (down - centre[0]) ** 2 + (right - centre[1]) ** 2 <= radius**2
        pixels[inside] = COLOURS[colour]
    return pixels


def dots_row(random: np.random.Generator, *, grey: bool = False) -> PromptRow:
    """A question with its picture."""
    asked = str(random.choice(list(COLOURS)))
    count = int(random.integers(1, MOST + 1))
    others = [name for name in COLOURS if name != asked]
    beside = random.choice(others, int(random.integers(0, MOST_OTHERS + 1))).tolist()
    pixels = dots_picture(random, [asked] * count + beside)
    if grey:
        pixels = random.integers(108, 149, pixels.shape).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return PromptRow(
        data_source=SOURCE,
        prompt=(message("user", f"{PLACEHOLDER}How many {asked}?"),),
        ground_truth=str(count),
        images=(PictureSource(data=stream.getvalue()),),
    )


def dots_rows(*, seed: int, grey: bool = False) -> Iterator[PromptRow]:
    """Questions without end, drawn from `seed`."""
    random = np.random.default_rng(seed)
    while True:
        yield dots_row(random, grey=grey)


def main() -> None:
    """See the head of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--grey", action="store_true", help="pictures show nothing")
    flags = parser.parse_args()
    rows = dots_rows(seed=flags.seed, grey=flags.grey)
    write_prompts(flags.file, [next(rows) for _ in range(flags.rows)])


if __name__ == "__main__":
    main()
