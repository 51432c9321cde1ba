"""Reads LeRobot data sets (github.com/huggingface/lerobot), layouts v2.1 and v3.0.

    meta/info.json     features, frames per second, patterns of file names
    meta/tasks.*       tasks by number: jsonl in v2.1, parquet in v3.0
    meta/episodes*     episodes and, in v3.0, their places in shared files
    data/              numbers of every frame, parquet; images too if a camera has no videos
    videos/            mp4 of a camera: one episode per file in v2.1, several in v3.0

Videos are decoded by ffmpeg in one pass over each file, at the requested size. The lerobot package
is not needed. Every fault is a ValueError with file and remedy. A data set is untrusted: file names
must stay inside its folder, and sizes are bounded before anything is unpacked. Left out: layouts
before v2.1, depth maps, statistics, and features other than cameras, one state and one action.
"""

# T frame of an episode, C camera, H height, W width, A action dimension, P proprioceptive value

import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

from envs.parquet_footers import check_footers
from siirl.data_coordinator.lerobot import VERSIONS
from siirl.data_coordinator.lerobot.video_frames import VideoFile
from siirl.files.documents import is_count

INFO, TASK_NAMES = "meta/info.json", "meta/siirl_tasks.json"
"""siirl adds the second column: the environment's task name of each instruction."""
STATE, ACTION = "observation.state", "action"
INDEX, LENGTH = "episode_index", "length"
SHARED_DATA = "data/"
"""Prefix of the columns that name the parquet file in v3.0's episode table."""
REMEDY = "Download or record the data set again."
MOST_PIXELS = 1 << 24  # per image: 4096 x 4096
MOST_VALUES = 1 << 27  # in the columns that are read from a parquet file: about a gigabyte
MOST_FPS, LAST_SECOND = 10_000.0, 1e9  # larger values of a video would overflow
LONGEST_NAME = 255  # bytes of a part of a path
WORD = re.compile(r"\{(\w+)(?::0?(\d?)d)?\}")
"""A place in a pattern of file names: `{episode_index:06d}`."""
Size = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True)
class RobotEpisode:
    """One episode, with a row for each requested frame."""

    index: int
    task: str
    """The instruction."""
    images: NDArray[np.uint8]
    """[T, C, H, W, 3]"""
    state: NDArray[np.float32]
    """[T, P]"""
    actions: NDArray[np.float32]
    """[T, A]"""


@dataclass(frozen=True)
class EpisodePlace:
    """Location of an episode's frames."""

    index: int
    task: str
    length: int
    data: Path
    videos: Mapping[str, tuple[Path, float]]
    """File of each camera, and the second at which the episode begins in it."""

    def __post_init__(self) -> None:
        starts = [second for _, second in self.videos.values()]
        if self.length < 1 or not all(0 <= second <= LAST_SECOND for second in starts):
            raise ValueError(
                f"Episode {self.index} of {self.data} has {self.length} frames and begins at the "
                f"seconds {starts} of its videos. {REMEDY}"
            )


class RobotDataSet:
    """A data set on this machine.

    Args:
        folder: The folder that holds `meta/`.

    Raises:
        ValueError: Not a LeRobot data set of a known layout, or a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.info = _object(folder / INFO)
        version = self.info.get("codebase_version")
        if version not in VERSIONS:
            raise ValueError(
                f"{folder / INFO} has codebase_version {version!r}; known versions are "
                f"{' and '.join(VERSIONS)}. Convert it with the lerobot package."
            )
        try:
            self.fps = _number(self.info, "fps")
            if not 0 < self.fps <= MOST_FPS:
                raise ValueError(
                    f"{folder / INFO} has fps={self.fps:g}; it must be above 0 and at most "
                    f"{MOST_FPS:g}. {REMEDY}"
                )
            features: Mapping[str, Any] = self.info["features"]
            self.cameras = tuple(
                name for name, feature in features.items() if feature["dtype"] in ("video", "image")
            )
            """Names of the cameras, in the order of info.json."""
            self._in_videos = {name for name in self.cameras if features[name]["dtype"] == "video"}
            self.features = {name: tuple(feature["shape"]) for name, feature in features.items()}
            """Shape of each feature."""
            for camera in self.cameras:
                _check_picture(self.features[camera], place=f"{folder / INFO}, {camera}")
            episodes = self._episodes_2() if version == "v2.1" else self._episodes_3()
            self.episodes = tuple(sorted(episodes, key=lambda episode: episode.index))
        except (ArithmeticError, AttributeError, LookupError, TypeError, _NoNumber) as error:
            raise ValueError(f"{folder / 'meta'} is incomplete: {error!r}. {REMEDY}") from error

    @property
    def task_names(self) -> Mapping[str, str]:
        """The environment's name of each instruction, if siirl wrote the data set; else empty."""
        file = self.folder / TASK_NAMES
        return {str(k): str(v) for k, v in _object(file).items()} if file.is_file() else {}

    def read(
        self,
        *,
        cameras: Sequence[str],
        size: Size | None = None,
        every: int = 1,
        state: str | None = STATE,
        episodes: Sequence[int] | None = None,
    ) -> Iterator[RobotEpisode]:
        """Read episodes, one in memory at a time; files that hold several are read in one pass.

        Args:
            cameras: Names of `self.cameras`, in the order of the images.
            size: Height and width to scale images to; None: unscaled.
            every: Distance of kept frames; the last frame is always kept.
            state: Feature of proprioception; None: no feature, and P is 0.
            episodes: Numbers of the episodes; None: all.

        Raises:
            ValueError: A missing or damaged file.
        """
        wanted = [
            episode for episode in self.episodes if episodes is None or episode.index in episodes
        ]
        check_footers(dict.fromkeys(episode.data for episode in wanted))
        open_videos: dict[str, VideoFile] = {}
        try:
            for episode in sorted(wanted, key=lambda episode: (str(episode.data), episode.index)):
                rows = self._rows(episode, cameras, state)
                kept = kept_frames(episode.length, every)
                images = [
                    self._film(open_videos, episode, camera, kept, size)
                    if camera in self._in_videos
                    else _pictures(rows[camera], kept, size, file=episode.data)
                    for camera in cameras
                ]
                yield RobotEpisode(
                    index=episode.index,
                    task=episode.task,
                    images=np.stack(images, axis=1),
                    state=_numbers(rows, state, kept, file=episode.data),
                    actions=_numbers(rows, ACTION, kept, file=episode.data),
                )
        finally:
            for video in open_videos.values():
                video.close()

    def _film(
        self,
        open_videos: dict[str, VideoFile],
        episode: EpisodePlace,
        camera: str,
        kept: Sequence[int],
        size: Size | None,
    ) -> NDArray[np.uint8]:
        file, start = episode.videos[camera]
        video = open_videos.get(camera)
        if video is None or video.file != file:
            if video is not None:
                video.close()
            height, width = self.features[camera][:2]
            video = open_videos[camera] = VideoFile(file, stored=(height, width), size=size)
        first = round(start * self.fps)
        return video.take([first + number for number in kept])

    def _rows(
        self, episode: EpisodePlace, cameras: Sequence[str], state: str | None
    ) -> pyarrow.Table:
        columns = [ACTION, INDEX, *([state] if state else [])]
        columns += [camera for camera in cameras if camera not in self._in_videos]
        table = _table(episode.data, columns, filters=[(INDEX, "=", episode.index)])
        missing = [name for name in columns if name not in table.schema.names]
        if missing or len(table) != episode.length:
            found = f"no {missing[0]}" if missing else f"{len(table)} frames"
            raise ValueError(
                f"{episode.data} has {found} for episode {episode.index}, which has "
                f"{episode.length} frames. {REMEDY}"
            )
        return table

    def _episodes_2(self) -> Iterator[EpisodePlace]:
        for row in _lines(self.folder / "meta/episodes.jsonl"):
            index = _whole(row, INDEX)
            words = {"episode_chunk": index // _whole(self.info, "chunks_size"), INDEX: index}
            yield EpisodePlace(
                index=index,
                task=str(row["tasks"][0]),
                length=_whole(row, LENGTH),
                data=self._inside(self.info["data_path"], words),
                videos={
                    camera: (
                        self._inside(self.info["video_path"], {**words, "video_key": camera}),
                        0.0,
                    )
                    for camera in self._in_videos
                },
            )

    def _episodes_3(self) -> Iterator[EpisodePlace]:
        part = [f"videos/{camera}/" for camera in self._in_videos]
        columns = [INDEX, "tasks", LENGTH]
        for name in ("chunk_index", "file_index"):
            columns += [f"{prefix}{name}" for prefix in (SHARED_DATA, *part)]
        columns += [f"{prefix}from_timestamp" for prefix in part]
        files = sorted((self.folder / "meta/episodes").glob("*/*.parquet"))
        if not files:
            raise ValueError(f"{self.folder} has no meta/episodes. {REMEDY}")
        check_footers(files)
        for file in files:
            for row in _table(file, columns).to_pylist():
                yield EpisodePlace(
                    index=_whole(row, INDEX),
                    task=str(row["tasks"][0]),
                    length=_whole(row, LENGTH),
                    data=self._shared_file(self.info["data_path"], row, SHARED_DATA),
                    videos={
                        camera: (
                            self._shared_file(
                                self.info["video_path"], row, f"videos/{camera}/", camera
                            ),
                            _number(row, f"videos/{camera}/from_timestamp"),
                        )
                        for camera in self._in_videos
                    },
                )

    def _shared_file(
        self, pattern: str, row: Mapping[str, Any], prefix: str, camera: str = ""
    ) -> Path:
        words = {name: _whole(row, f"{prefix}{name}") for name in ("chunk_index", "file_index")}
        return self._inside(pattern, {**words, "video_key": camera})

    def _inside(self, pattern: str, words: Mapping[str, Any]) -> Path:
        """A file of the data set; a pattern of a foreign info.json must not leave the folder."""
        name = WORD.sub(lambda word: str(words[word[1]]).zfill(int(word[2] or 0)), str(pattern))
        path = PurePosixPath(name)
        too_long = any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts)
        if path.is_absolute() or ".." in path.parts or too_long or not name.isprintable():
            raise ValueError(
                f"{self.folder / INFO} names {name!r:.300}, which is not a file inside the "
                f"data set. {REMEDY}"
            )
        return self.folder / name


class _NoNumber(ValueError):
    """An entry of the metadata is not a number."""


def _number(row: Mapping[str, Any], name: str) -> float:
    if type(row[name]) not in (int, float):
        raise _NoNumber(f"{name} is {row[name]!r:.100}, which is not a number")
    return float(row[name])


def _whole(row: Mapping[str, Any], name: str) -> int:
    if not is_count(row[name]):
        raise _NoNumber(f"{name} is {row[name]!r:.100}, which is not a whole number of at least 0")
    return int(row[name])


def is_robot_data_set(folder: Path) -> bool:
    """Whether a folder has the metadata of a LeRobot data set."""
    return (folder / INFO).is_file()


def kept_frames(length: int, every: int) -> list[int]:
    """Numbers of each `every`-th frame, and of the last."""
    return sorted({*range(0, length, every), length - 1})


def _check_picture(shape: tuple[Any, ...], *, place: str) -> None:
    sides = shape[:2]
    if (
        len(sides) < 2
        or not all(is_count(side, least=1) for side in sides)
        or sides[0] * sides[1] > MOST_PIXELS
    ):
        raise ValueError(
            f"{place} has the shape {shape!r:.100}; it must be height, width and channels, with at "
            f"most {MOST_PIXELS} pixels. {REMEDY}"
        )


def _table(
    file: Path, columns: Sequence[str], *, filters: list[tuple[str, str, int]] | None = None
) -> pyarrow.Table:
    """Columns of a parquet file. The number of values is limited, because constant columns compress
    without bound.
    """
    try:
        metadata = parquet.read_metadata(file)
        heads = tuple(f"{name}." for name in columns)
        leaves = [
            number
            for number in range(len(metadata.schema))
            if f"{metadata.schema.column(number).path}.".startswith(heads)
        ]
        values = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            values += sum(group.column(leaf).num_values for leaf in leaves)
        if values > MOST_VALUES:
            raise ValueError(
                f"{file} would unpack to {values} values, more than {MOST_VALUES}. Split it into "
                "files of fewer episodes."
            )
        table = parquet.read_table(file, columns=list(columns), filters=filters)
        table.validate(full=True)  # refuses texts that are not UTF-8
        return table
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"{file} cannot be read: {said}. {REMEDY}") from error


def _numbers(
    rows: pyarrow.Table, name: str | None, kept: Sequence[int], *, file: Path
) -> NDArray[np.float32]:
    if name is None:
        return np.zeros((len(kept), 0), np.float32)
    try:
        values = np.asarray(rows[name].to_pylist(), np.float32)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{file}, {name}: rows of different lengths, or not numbers ({error}). {REMEDY}"
        ) from error
    return values.reshape(len(rows), -1)[list(kept)]


def _pictures(
    column: pyarrow.ChunkedArray, kept: Sequence[int], size: Size | None, *, file: Path
) -> NDArray[np.uint8]:
    """Decoded images of a parquet column."""
    pictures = []
    for number in kept:
        try:
            with Image.open(io.BytesIO(column[number].as_py()["bytes"])) as picture:
                _check_picture((picture.height, picture.width), place=f"A picture of {file}")
                scaled = picture.convert("RGB")
        except (OSError, TypeError, KeyError, Image.DecompressionBombError) as error:
            raise ValueError(f"A picture of {file} cannot be read: {error}. {REMEDY}") from error
        if size is not None and scaled.size != (size[1], size[0]):
            scaled = scaled.resize((size[1], size[0]), Image.Resampling.BOX)
        pictures.append(np.asarray(scaled))
    return np.stack(pictures)


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}. {REMEDY}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} does not hold a JSON object. {REMEDY}")
    return found


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.strip():
                yield json.loads(line)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}. {REMEDY}") from error
