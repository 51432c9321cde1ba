r"""Moving picture of episodes before and after training: docs/pictures/before_after.webp.

    siirl evaluate checkpoint=assets/tiny_vla env=metaworld actions=sampled \
        trainer.val_episodes=8 trainer.record_val_episodes=24
    siirl evaluate checkpoint=RUN env=metaworld actions=sampled \
        trainer.val_episodes=8 trainer.record_val_episodes=24
    siirl replay FIRST val-000000-sampled-000013 --size 256 --every 3 --output before_1.mp4
    siirl replay SECOND val-000000-sampled-000013 --size 256 --every 3 --output after_1.mp4
    python -m docs.before_after before_{1,2,3}.mp4 after_{1,2,3}.mp4

RUN is a run of the demo job, FIRST and SECOND are the folders that the evaluations print. The first
half of the videos is the upper row. An episode that has ended shows its last frame.
"""

import sys
from itertools import zip_longest
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

OUTPUT = Path(__file__).parent / "pictures" / "before_after.webp"
SIDE, STRIP, GAP = 224, 26, 6
MS_PER_FRAME, HOLD = 90, 14
"""Milliseconds of a frame, and frames for which the end is shown."""


def main(videos: list[str]) -> None:
    """Write the picture of `videos`, as many before as after training."""
    columns = len(videos) // 2
    episodes = [_frames(Path(video)) for video in videos]
    length = max(map(len, episodes)) + HOLD
    episodes = [frames + [frames[-1]] * (length - len(frames)) for frames in episodes]
    pictures = [_sheet(frames, columns) for frames in zip_longest(*episodes)]
    pictures[0].save(
        OUTPUT, save_all=True, append_images=pictures[1:], duration=MS_PER_FRAME, loop=0, quality=60
    )
    print(f"{OUTPUT}: {len(pictures)} frames, {OUTPUT.stat().st_size / 1e6:.2f} MB")


def _frames(video: Path) -> list[Image.Image]:
    return [_picture(frame) for frame in imageio.imiter(video)]


def _picture(frame: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(frame).resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _sheet(frames: tuple[Image.Image, ...], columns: int) -> Image.Image:
    """Two labelled rows."""
    width, height = columns * (SIDE + GAP) - GAP, 2 * (SIDE + STRIP)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for row, label in enumerate(("before training", "after training")):
        top = row * (SIDE + STRIP)
        draw.text((2, top + 4), label, fill="black", font=ImageFont.load_default(size=16))
        for column in range(columns):
            sheet.paste(frames[row * columns + column], (column * (SIDE + GAP), top + STRIP))
    return sheet


if __name__ == "__main__":
    main(sys.argv[1:])
