"""Writes LeRobot data sets, layout v3.0 or v2.1, which the lerobot package reads.

An episode has a parquet file and one mp4 file per camera in both layouts. v3.0 allows several
episodes per file; merge a data set of thousands of episodes with lerobot's own tools. Left out:
images in parquet, and appending to an existing data set.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from siirl.data_coordinator.lerobot import VERSIONS
from siirl.data_coordinator.lerobot.feature_statistics import FeatureStatistics, merged_statistics
from siirl.data_coordinator.lerobot.robot_data_set import (
    ACTION,
    INDEX,
    INFO,
    LENGTH,
    STATE,
    TASK_NAMES,
    RobotEpisode,
)

EPISODES_A_CHUNK = 1000  # lerobot's DEFAULT_CHUNK_SIZE
DATA_PATH = {
    "v2.1": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "v3.0": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
VIDEO_PATH = {
    "v2.1": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    "v3.0": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
COUNTERS = {
    "timestamp": "float32",
    "frame_index": "int64",
    INDEX: "int64",
    "index": "int64",
    "task_index": "int64",
}
WriteVideo = Callable[[Path, NDArray[np.uint8]], None]
"""Encodes uint8 [T, H, W, 3] as an H.264 mp4 file."""


class DataSetWriter:
    """Writes episodes one by one; `close` writes the metadata.

    Args:
        folder: The folder of the data set; new or empty.
        cameras: Names of the cameras, in the order of an episode's images.
        fps: Frames per second.
        write_video: Encoder of one file.
        version: `v3.0` or `v2.1`.
        robot_type: Name of the robot or environment.

    Raises:
        ValueError: An unknown version, or a folder with files.
    """

    def __init__(
        self,
        folder: Path,
        *,
        cameras: Sequence[str],
        fps: int,
        write_video: WriteVideo,
        version: str = "v3.0",
        robot_type: str | None = None,
    ) -> None:
        if version not in VERSIONS:
            raise ValueError(f"Layout {version!r} is unknown; known are {', '.join(VERSIONS)}.")
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty: name a new folder.")
        self.folder = folder
        self.cameras = tuple(cameras)
        self.fps = fps
        self.version = version
        self._write_video, self._robot_type = write_video, robot_type
        self._task_names: dict[str, str] = {}
        self._tasks: dict[str, int] = {}
        self._rows: list[dict[str, Any]] = []
        self._statistics: list[dict[str, FeatureStatistics]] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._frames = 0

    def add(self, episode: RobotEpisode, *, task_name: str | None = None) -> None:
        """Write the files of an episode.

        Args:
            episode: The episode; its `index` is not read, episodes count from 0.
            task_name: The environment's name of its instruction, which `tasks_of` reads.

        Raises:
            ValueError: Shapes that differ from the first episode's.
            OSError: A file cannot be written.
        """
        number, length = len(self._rows), len(episode.actions)
        numbers = {STATE: episode.state, ACTION: episode.actions}
        films = dict(zip(self.cameras, np.moveaxis(episode.images, 1, 0), strict=True))
        shapes = {name: values.shape[1:] for name, values in {**films, **numbers}.items()}
        if self._shapes and shapes != self._shapes:
            raise ValueError(f"Episode {number} has {shapes}, but the first has {self._shapes}.")
        self._shapes = shapes
        if task_name is not None:
            self._task_names[episode.task] = task_name
        task = self._tasks.setdefault(episode.task, len(self._tasks))
        for camera, film in films.items():
            file = self.folder / self._video_file(camera, number)
            file.parent.mkdir(parents=True, exist_ok=True)
            self._write_video(file, np.ascontiguousarray(film))
        frame = np.arange(length)
        counters = {
            "timestamp": frame.astype(np.float32) / np.float32(self.fps),
            "frame_index": frame,
            INDEX: np.full(length, number),
            "index": self._frames + frame,
            "task_index": np.full(length, task),
        }
        self._write_rows(number, numbers, counters)
        self._statistics.append(
            {name: FeatureStatistics.of_images(film) for name, film in films.items()}
            | {name: FeatureStatistics.of_numbers(values) for name, values in numbers.items()}
            | {name: FeatureStatistics.of_numbers(v[:, None]) for name, v in counters.items()}
        )
        self._rows.append({INDEX: number, "tasks": [episode.task], LENGTH: length})
        self._frames += length

    def close(self) -> None:
        """Write `meta/`.

        Raises:
            ValueError: No episode was added.
        """
        if not self._rows:
            raise ValueError("A LeRobot data set needs at least one episode.")
        meta = self.folder / "meta"
        meta.mkdir(parents=True, exist_ok=True)
        (self.folder / INFO).write_text(json.dumps(self._info(), indent=4) + "\n")
        if self._task_names:
            (self.folder / TASK_NAMES).write_text(json.dumps(self._task_names, indent=1) + "\n")
        if self.version == "v2.1":
            tasks = [{"task_index": number, "task": task} for task, number in self._tasks.items()]
            _write_lines(meta / "tasks.jsonl", tasks)
            _write_lines(meta / "episodes.jsonl", self._rows)
            stats = []
            for number, found in enumerate(self._statistics):
                plain = {name: each.plain() for name, each in found.items()}
                stats.append({INDEX: number, "stats": plain})
            _write_lines(meta / "episodes_stats.jsonl", stats)
            return
        _write_tasks(meta / "tasks.parquet", self._tasks)
        merged = {}
        for name in self._statistics[0]:
            parts = [found[name] for found in self._statistics]
            merged[name] = merged_statistics(parts).plain()
        (meta / "stats.json").write_text(json.dumps(merged, indent=1) + "\n")
        file = meta / "episodes/chunk-000/file-000.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(
            pyarrow.Table.from_pylist(list(map(self._episode_row, self._rows))), file
        )

    def _episode_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the episode table of v3.0."""
        number, length = row[INDEX], row[LENGTH]
        first = sum(each[LENGTH] for each in self._rows[:number])
        data_file = {
            "chunk_index": number // EPISODES_A_CHUNK,
            "file_index": number % EPISODES_A_CHUNK,
        }
        video = {**data_file, "from_timestamp": 0.0, "to_timestamp": length / self.fps}
        videos: dict[str, Any] = {}
        for camera in self.cameras:
            videos |= {f"videos/{camera}/{name}": value for name, value in video.items()}
        stats: dict[str, Any] = {}
        for name, found in self._statistics[number].items():
            stats |= {f"stats/{name}/{kind}": value for kind, value in found.plain().items()}
        return {
            **row,
            **{f"data/{name}": value for name, value in data_file.items()},
            "dataset_from_index": first,
            "dataset_to_index": first + length,
            **videos,
            **stats,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }

    def _write_rows(
        self,
        number: int,
        numbers: Mapping[str, NDArray[np.float32]],
        counters: Mapping[str, NDArray[Any]],
    ) -> None:
        arrays = {
            name: pyarrow.FixedSizeListArray.from_arrays(
                pyarrow.array(np.ascontiguousarray(values, np.float32).ravel()), values.shape[1]
            )
            for name, values in numbers.items()
        }
        arrays |= {
            name: pyarrow.array(values.astype(COUNTERS[name])) for name, values in counters.items()
        }
        file = self.folder / self._data_file(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(arrays), file)

    def _words(self, number: int) -> dict[str, int]:
        chunk, file = divmod(number, EPISODES_A_CHUNK)
        return {
            "episode_chunk": chunk,
            INDEX: number,
            "chunk_index": chunk,
            "file_index": file,
        }

    def _data_file(self, number: int) -> str:
        return DATA_PATH[self.version].format(**self._words(number))

    def _video_file(self, camera: str, number: int) -> str:
        return VIDEO_PATH[self.version].format(**self._words(number), video_key=camera)

    def _info(self) -> dict[str, Any]:
        features: dict[str, Any] = {
            camera: {
                "dtype": "video",
                "shape": list(self._shapes[camera]),
                "names": ["height", "width", "channels"],
                "info": {
                    "video.height": self._shapes[camera][0],
                    "video.width": self._shapes[camera][1],
                    "video.codec": "h264",
                    "video.pix_fmt": "yuv420p",
                    "video.is_depth_map": False,
                    "video.fps": self.fps,
                    "video.channels": 3,
                    "has_audio": False,
                },
            }
            for camera in self.cameras
        }
        for name in (STATE, ACTION):
            features[name] = {
                "dtype": "float32",
                "shape": list(self._shapes[name]),
                "names": [f"{name.rpartition('.')[2]}_{n}" for n in range(self._shapes[name][0])],
            }
        features |= {
            name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in COUNTERS.items()
        }
        count = len(self._rows)
        by_version: dict[str, Any] = (
            {
                "total_videos": count * len(self.cameras),
                "total_chunks": -(-count // EPISODES_A_CHUNK),
            }
            if self.version == "v2.1"
            else {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
        )
        return {
            "codebase_version": self.version,
            "robot_type": self._robot_type,
            "total_episodes": count,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            **by_version,
            "chunks_size": EPISODES_A_CHUNK,
            "fps": self.fps,
            "splits": {"train": f"0:{count}"},
            "data_path": DATA_PATH[self.version],
            "video_path": VIDEO_PATH[self.version],
            "features": features,
        }


def _write_lines(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_tasks(file: Path, tasks: Mapping[str, int]) -> None:
    """Write the tasks in pandas' form of a frame indexed by them: lerobot reads them with
    pandas.
    """
    index = "__index_level_0__"
    column = {"metadata": None, "pandas_type": "int64", "numpy_type": "int64"}
    text = {"metadata": None, "pandas_type": "unicode", "numpy_type": "object"}
    described = {
        "index_columns": [index],
        "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", **column},
            {"name": None, "field_name": index, **text},
        ],
        "creator": {"library": "pyarrow", "version": pyarrow.__version__},
        "pandas_version": "2.2.0",
    }
    table = pyarrow.table(
        {"task_index": pyarrow.array(list(tasks.values()), "int64"), index: list(tasks)}
    )
    parquet.write_table(
        table.replace_schema_metadata({"pandas": json.dumps(described)}),
        file,
    )
