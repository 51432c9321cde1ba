"""Records episodes as mp4 with task, step, reward and outcome drawn in, and an index of videos.

`<video>.json` beside a video has the executed actions; `siirl.replay` simulates the episode again
from them.

Drawing and encoding run in one thread beside the training (ffmpeg is a separate process), with a
bounded number of episodes waiting; an error there is raised by the next call here. `VideoRecorder`
does not depend on batches: it takes frames and a `VideoSample`.
"""

# N frame, H height, W width

import json
import urllib.parse
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from subprocess import PIPE
from typing import Any, NamedTuple

import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from envs.base import Frames
from siirl.errors import SiirlError
from siirl.interrupts import start_apart
from siirl.reporting.jsonl import JsonlFile, read_values

VIDEOS_FOLDER = "videos"
_INDEX = "index{rank}.jsonl"
_WAITING = 8  # episodes in memory: at 30 frames of 256 x 256 about 50 MB
_SMALLEST_SIDE = 256  # pixels; smaller frames are enlarged, so that the text can be read
_FONT = ImageFont.load_default(size=14)
_MARGIN, _LINE = 6, 20
_MOST_LINES = 5  # per instruction or notice: LIBERO's longest take 3 at 256 pixels
_TEXT_COLOUR, _NOTICE_COLOUR = (255, 255, 255), (240, 180, 60)
_COLOURS = {"success": (60, 190, 90), "fail": (230, 70, 60), "unscored": (150, 150, 150)}


@dataclass(frozen=True)
class VideoSample:
    """The sample of a video."""

    uid: str
    """Unique id of the sample; each has its own file."""
    task: str
    instruction: str
    kind: str
    """`train` or `val`; each has its own folder."""
    step: int
    """Training step of the sample."""
    seed: int
    success: bool | None
    """None if the environment reports no success."""
    reward: float | None = None
    """Trajectory reward; None if not computed."""
    notice: str = ""
    """Notice to viewers (`EnvSpec.notice`), a separate line in every frame."""

    @property
    def outcome(self) -> str:
        """`success`, `fail` or `unscored`: the first part of the file's name."""
        if self.success is None:
            return "unscored"
        return "success" if self.success else "fail"

    @property
    def path(self) -> Path:
        """The file below the folder of videos."""
        return (
            Path(self.kind)
            / f"step_{self.step:06d}"
            / f"{self.outcome}_{urllib.parse.quote(self.uid, safe='')}.mp4"
        )


class VideoRecorder:
    """Writes videos below `folder` and their rows in index.jsonl; a context manager.

    Args:
        folder: The run's folder for videos; created if missing.
        first_step: First step of this process; a resumed run drops the rows of later ones (see
            JsonlFile).
        rank: Rank of this process. Each rank has a separate index: index.jsonl, index_rank1.jsonl,
            …
        frames_per_second: Speed at which the videos play.
    """

    def __init__(
        self, folder: Path, *, first_step: int = 0, rank: int = 0, frames_per_second: int = 10
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        look_for_ffmpeg()
        self.folder, self.frames_per_second = folder, frames_per_second
        self._index = JsonlFile(
            folder / _INDEX.format(rank=f"_rank{rank}" if rank else ""), first_step=first_step
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="videos")
        self._waiting: deque[Future[None]] = deque()
        self._uids: set[str] = set()

    def __enter__(self) -> "VideoRecorder":
        """Nothing more to open."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Finish queued videos."""
        self.close()

    def record(
        self, frames: Frames, sample: VideoSample, record: Mapping[str, Any] | None = None
    ) -> Path:
        """Queue a video and return the path of its file; waits only if too many are queued.

        Args:
            frames: The pictures of the episode.
            sample: Facts of the episode, for the caption and the file name.
            record: Further facts of the episode as JSON values, for a file beside the video.

        Raises:
            ValueError: Invalid frames, or a uid that already has a video.
            SiirlError: An earlier video could not be written.
        """
        _check(frames, sample)
        if sample.uid in self._uids:
            raise ValueError(
                f"Sample {sample.uid} already has a video: every sample needs a unique uid."
            )
        self._uids.add(sample.uid)
        while self._waiting and (len(self._waiting) >= _WAITING or self._waiting[0].done()):
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._write, frames, sample, dict(record or {})))
        return self.folder / sample.path

    def close(self) -> None:
        """Wait for all videos; may be called twice.

        Raises:
            SiirlError: A video could not be written.
        """
        self._thread.shutdown(wait=True)
        self._index.close()
        while self._waiting:
            self._waiting.popleft().result()

    def _write(self, frames: Frames, sample: VideoSample, record: dict[str, Any]) -> None:
        file = self.folder / sample.path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_video(file, annotate(frames, sample), frames_per_second=self.frames_per_second)
            if record:
                file.with_suffix(".json").write_text(json.dumps(record) + "\n")
            row = asdict(sample) | {
                "outcome": sample.outcome,
                "frames": len(frames.steps),
                "environment_steps": frames.steps[-1],
            }
            if not sample.notice:
                del row["notice"]
            self._index.append(row | {"video": sample.path.as_posix()})
        except OSError as error:
            raise SiirlError(
                f"The video {file} could not be written: {error}. Free some space, or record none: "
                "trainer.record_episodes=0 trainer.record_val_episodes=0."
            ) from error


def _check(frames: Frames, sample: VideoSample) -> None:
    images_NHWC, steps = frames.images, frames.steps
    is_video = (
        images_NHWC.dtype == np.uint8 and images_NHWC.ndim == 4 and images_NHWC.shape[-1] == 3
    )
    if not is_video or not steps or len(images_NHWC) != len(steps):
        raise ValueError(
            f"The video of {sample.uid} needs uint8 [N, H, W, 3] with N >= 1, and N steps; "
            f"got {images_NHWC.dtype} {list(images_NHWC.shape)} and {len(steps)} steps."
        )


def annotate(frames: Frames, sample: VideoSample) -> NDArray[np.uint8]:
    """The frames, enlarged if small, below a strip with environment step, reward, outcome and
    instruction; uint8 [N, H, W, 3].
    """
    height, width = frames.images.shape[1:3]
    scale = max(1, -(-_SMALLEST_SIDE // min(height, width)))
    height, width = (
        height * scale // 2 * 2,
        width * scale // 2 * 2,
    )  # even: the codec stores colours at half the size
    strip = _strip(width, sample)  # on top, where a player's controls do not cover it
    canvas_NHWC = np.empty((len(frames.steps), height + strip.height, width, 3), np.uint8)
    for image_HWC, step, canvas_HWC in zip(frames.images, frames.steps, canvas_NHWC, strict=True):
        canvas_HWC[strip.height :] = np.asarray(
            Image.fromarray(image_HWC).resize((width, height), Image.Resampling.BICUBIC)
        )
        labelled = strip.copy()
        ImageDraw.Draw(labelled).text((_MARGIN, _MARGIN), f"step {step}", font=_FONT, fill="white")
        canvas_HWC[: strip.height] = np.asarray(labelled)
    return canvas_NHWC


def _strip(width: int, sample: VideoSample) -> Image.Image:
    """Caption shared by all frames, with room for the step in its first line."""
    said = [
        (line, _TEXT_COLOUR)
        for line in _wrapped(sample.instruction or sample.task, width - 2 * _MARGIN)
    ]
    said += [(line, _NOTICE_COLOUR) for line in _wrapped(sample.notice, width - 2 * _MARGIN)]
    strip = Image.new("RGB", (width, 2 * _MARGIN + (1 + len(said)) * _LINE), (25, 25, 30))
    draw, colour = ImageDraw.Draw(strip), _COLOURS[sample.outcome]
    draw.rectangle((0, strip.height - 3, width, strip.height), fill=colour)
    outcome = {"success": "success", "fail": "failure", "unscored": ""}[sample.outcome]
    draw.text((width - _MARGIN, _MARGIN), outcome, font=_FONT, fill=colour, anchor="ra")
    if sample.reward is not None:
        draw.text(
            (width / 2, _MARGIN),
            f"reward {sample.reward:.2f}",
            font=_FONT,
            fill="white",
            anchor="ma",
        )
    for line, (text, fill) in enumerate(said, start=1):
        draw.text((_MARGIN, _MARGIN + line * _LINE - 2), text, font=_FONT, fill=fill)
    return strip


def _wrapped(text: str, width: float) -> list[str]:
    """Wrap text to `width` pixels; more than `_MOST_LINES` lines end with an ellipsis."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and (_FONT.getlength(longer) <= width or len(lines) == _MOST_LINES):
            lines[-1] = longer
        else:
            lines.append(word)
    return [_shortened(line, width) for line in lines]


def _shortened(text: str, width: float) -> str:
    if _FONT.getlength(text) <= width:
        return text
    while text and _FONT.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def look_for_ffmpeg() -> None:
    """Find ffmpeg before the first video. The search runs ffmpeg once. If a stopping run searched,
    its Ctrl-C would end that process, and the run's videos could not be written.
    """
    with suppress(RuntimeError):  # not found: the first video reports it
        imageio_ffmpeg.get_ffmpeg_exe()


def write_video(file: Path, images_NHWC: NDArray[np.uint8], *, frames_per_second: int) -> None:
    """Encode uint8 [N, H, W, 3] (H and W even) as H.264, which browsers play; the file appears when
    it is complete.

    Raises:
        OSError: ffmpeg could not write it; has ffmpeg's message.
    """
    height, width = images_NHWC.shape[1:3]
    unfinished = file.with_suffix(".part")
    source = [
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-s",
        f"{width}x{height}",
        "-r",
        str(frames_per_second),
        "-i",
        "-",
    ]
    # One thread and a fast preset: the simulators need the cores.
    codec = [
        "-c:v",
        "libx264",
        "-preset",
        "veryfast",
        "-crf",
        "23",
        "-pix_fmt",
        "yuv420p",
        "-threads",
        "1",
        "-movflags",
        "+faststart",
    ]
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-v",
        "error",
        "-y",
        *source,
        *codec,
        "-f",
        "mp4",
        str(unfinished),
    ]
    with start_apart(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as ffmpeg:
        _, said = ffmpeg.communicate(images_NHWC.tobytes())
    if ffmpeg.returncode != 0:
        unfinished.unlink(missing_ok=True)
        raise OSError(
            f"ffmpeg ended with {ffmpeg.returncode}: {said.decode(errors='replace').strip()[-500:]}"
        )
    unfinished.replace(file)


class VideoIndex(NamedTuple):
    """Contents of the video indices of a folder."""

    rows: list[dict[str, Any]]
    """Entries by step and uid; `video` is a path relative to the folder and inside it."""
    damaged: int
    """Number of invalid rows, which are left out."""


def read_video_index(folder: Path) -> VideoIndex:
    """The indices of all ranks below `folder`."""
    rows: list[Any] = []
    for file in sorted(folder.glob(_INDEX.format(rank="*"))):
        rows += [row for _, row in read_values(file)]
    sound = [row for row in rows if _is_row(row)]
    # episodes of an evaluation are written as they end
    by_step = sorted(sound, key=lambda row: (row["step"], row["uid"]))
    return VideoIndex(by_step, len(rows) - len(sound))


def read_index(folder: Path) -> list[dict[str, Any]]:
    """The valid rows of all ranks' indices below `folder`, by step and uid."""
    return read_video_index(folder).rows


def _is_row(row: object) -> bool:
    if not isinstance(row, dict) or not {"reward", "seed"} <= row.keys():
        return False
    texts = all(
        isinstance(row.get(name), str) for name in ("uid", "task", "kind", "outcome", "video")
    )
    return texts and type(row.get("step")) is int and _stays_inside(PurePosixPath(row["video"]))


def _stays_inside(video: PurePosixPath) -> bool:
    return bool(video.parts) and not video.is_absolute() and ".." not in video.parts
