"""Makes the LeRobot data sets beside this file, with the lerobot package itself.

    python3.11 -m venv lerobot-env
    lerobot-env/bin/pip install lerobot==0.4.4       # layout v3.0; lerobot==0.3.3 for v2.1
    lerobot-env/bin/python tests/lerobot/make_lerobot.py FOLDER

Two episodes of 12 and 8 frames: camera `front` of 64 x 64 pixels at 10 frames a second, four
numbers of state and action. A white square moves right; its column is 4 x frame, and action[0] is
frame/20. With `--images` the camera is kept as PNG pictures in parquet, and not as video. With
`--check` a
folder is read instead, and printed as JSON: lengths, tasks, and the means of frames.
"""

import argparse
import json
from pathlib import Path

import numpy as np

try:
    import torchvision
except RuntimeError:  # its compiled operators do not fit this torch
    torchvision = None

from lerobot.datasets import lerobot_dataset

LENGTHS = (12, 8)
TASKS = ("drawer-open", "close the drawer")
FEATURES = {
    "observation.images.front": {
        "dtype": "video",
        "shape": (64, 64, 3),
        "names": ["height", "width", "channels"],
    },
    "observation.state": {"dtype": "float32", "shape": (4,), "names": ["x", "y", "z", "gripper"]},
    "action": {"dtype": "float32", "shape": (4,), "names": ["x", "y", "z", "gripper"]},
}


def frame(episode: int, number: int) -> dict[str, np.ndarray]:
    """A frame's features."""
    image = np.full((64, 64, 3), 40 + 100 * episode, np.uint8)
    image[20:36, 4 * number : 4 * number + 12] = 255
    return {
        "observation.images.front": image,
        "observation.state": np.array([episode, number, 0.5, -0.5], np.float32),
        "action": np.array([number / 20, -0.25 * episode, 0.0, 1.0], np.float32),
    }


def make(folder: Path, *, images: bool) -> None:
    """Write the data set."""
    if images:
        FEATURES["observation.images.front"]["dtype"] = "image"
    data = lerobot_dataset.LeRobotDataset.create(
        repo_id="me/drawers", fps=10, features=FEATURES, root=folder, use_videos=not images
    )
    for episode, (length, task) in enumerate(zip(LENGTHS, TASKS, strict=True)):
        for number in range(length):
            values = frame(episode, number)
            if lerobot_dataset.CODEBASE_VERSION == "v2.1":
                data.add_frame(values, task)
            else:
                data.add_frame({**values, "task": task})
        data.save_episode()
    if lerobot_dataset.CODEBASE_VERSION != "v2.1":
        data.finalize()


def check(folder: Path) -> None:
    """Print what lerobot reads."""
    data = lerobot_dataset.LeRobotDataset("me/drawers", root=folder, video_backend="pyav")
    camera = next(iter(data.meta.camera_keys))
    rows = [data[number] for number in range(len(data))]
    print(
        json.dumps(
            {
                "version": str(data.meta.info["codebase_version"]),
                "episodes": data.meta.total_episodes,
                "episode_index": [int(row["episode_index"]) for row in rows],
                "tasks": [row["task"] for row in rows],
                "actions": [row["action"].tolist() for row in rows],
                "states": [row["observation.state"].tolist() for row in rows],
                "means": [float(row[camera].mean()) * 255 for row in rows],
                "stats": {
                    name: [round(float(x), 4) for x in np.ravel(stats["mean"])]
                    for name, stats in data.meta.stats.items()
                    if name in ("action", camera)
                },
            }
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--check", action="store_true")
    flags = parser.parse_args()
    check(flags.folder) if flags.check else make(flags.folder, images=flags.images)
