"""Makes the README's picture from a recorded episode: four frames of a video, side by side.

python docs/rollout_picture.py outputs/run/<time>/videos/val/step_000060/success_<uid>.mp4
docs/rollout.png
"""

import sys

import imageio.v3 as imageio
import numpy as np


def main(video: str, picture: str, *, frames: int = 4) -> None:
    """Write `frames` frames of `video`, evenly spread from the first to the last, side by side."""
    images = list(imageio.imiter(video))
    chosen = [images[round(place)] for place in np.linspace(0, len(images) - 1, frames)]
    imageio.imwrite(picture, np.concatenate(chosen, axis=1))


if __name__ == "__main__":
    main(*sys.argv[1:3])
