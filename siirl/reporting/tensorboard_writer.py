"""TensorBoard events: scalars, histograms, texts, and animations of recorded episodes.

TensorBoard has neither tags nor tables: both become texts, tables in Markdown. It plays no mp4, so
a video is an animated GIF of few, small frames. Left out: all but the first new video of a kind,
because TensorBoard keeps only ten images per name; videos/ has all of them.
"""

import html
import json
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL, PIPE

import imageio_ffmpeg
import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary

from siirl.errors import SiirlError
from siirl.interrupts import start_apart
from siirl.reporting.metrics import Reduced, finite
from siirl.reporting.recorder import look_for_ffmpeg
from siirl.reporting.writer_contract import Cell, RunDescription, RunWriter, Table, Video

TENSORBOARD_FOLDER = "tensorboard"
LARGEST_BIN = 5e19
"""Approximate limit of TensorBoard's bins; it refuses values outside them."""
GIF_FRAMES, GIF_WIDTH = 32, 192
"""About 300 kB an episode, a few times the mp4 file."""
MOST_ROWS, CELL_LENGTH = 16, 2000
"""Rows of a table that are written, because TensorBoard loads a text as a whole."""


class TensorBoardWriter(RunWriter):
    """TensorBoard events below `RunDescription.folder`."""

    def __init__(self, run: RunDescription) -> None:
        # imported here, because the import takes a second
        from torch.utils.tensorboard import SummaryWriter

        look_for_ffmpeg()
        # A resumed run purges the events of steps that it repeats.
        self._events = SummaryWriter(
            str(run.folder / TENSORBOARD_FOLDER), purge_step=run.first_step or None
        )
        texts = {
            "notice": run.notice,
            "tags": ", ".join(run.tags),
            "config": _code(json.dumps(run.config, indent=2, default=str)) if run.config else "",
        }
        for name, text in texts.items():
            if text:
                self._events.add_text(name, text, run.first_step)

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Add the step's events and flush them."""
        for name, value in metrics.items():
            if not isinstance(value, list):
                self._events.add_scalar(name, value, step)
            elif numbers := finite(value):
                self._events.add_histogram(name, np.clip(numbers, -LARGEST_BIN, LARGEST_BIN), step)
        self._events.flush()

    def show_videos(self, *, step: int, videos: Sequence[Video]) -> None:
        """Add an animation of the first video of each kind, and a text with all files."""
        for kind in sorted({video.kind for video in videos}):
            same = [video for video in videos if video.kind == kind]
            self._events._get_file_writer().add_summary(
                Summary(value=[Summary.Value(tag=f"videos/{kind}", image=_animation(same[0]))]),
                step,
            )
            lines = [f"- {_escaped(video.caption)}: `{video.file}`" for video in same]
            self._events.add_text(f"videos/{kind}", "\n".join(lines), step)
        self._events.flush()

    def show_table(self, *, step: int, name: str, table: Table) -> None:
        """Add the first `MOST_ROWS` rows as a Markdown table."""
        self._events.add_text(name, markdown(table), step)
        self._events.flush()

    def close(self) -> None:
        """Close the event file."""
        self._events.close()


def markdown(table: Table) -> str:
    """The first `MOST_ROWS` rows as a Markdown table; markup in a cell stays visible."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows[:MOST_ROWS]]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return _escaped(str(value)[:CELL_LENGTH])


def _escaped(text: str) -> str:
    return html.escape(text).replace("|", "&#124;").replace("\n", "<br>")


def _code(text: str) -> str:
    """A block of code in Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _animation(video: Video) -> Summary.Image:
    """At most `GIF_FRAMES` frames, evenly spaced, as an animated GIF.

    Raises:
        SiirlError: ffmpeg could not read the video; has ffmpeg's message.
    """
    every = -(-video.frames // GIF_FRAMES)
    filters = f"select=not(mod(n\\,{every})),setpts=N/(10*TB),scale={GIF_WIDTH}:-2"
    command = [
        *(imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-threads", "1", "-i", str(video.file)),
        *("-vf", filters, "-r", "10", "-f", "gif", "-"),
    ]
    with start_apart(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE) as ffmpeg:
        picture, said = ffmpeg.communicate()
    if ffmpeg.returncode != 0:
        raise SiirlError(
            f"The video {video.file} cannot be shown in TensorBoard: "
            f"{said.decode(errors='replace').strip()[-500:]}. Leave tensorboard out of "
            "trainer.logger, or record no videos: trainer.record_episodes=0 "
            "trainer.record_val_episodes=0."
        )
    # GIF89a: width and height follow the six bytes of the signature, little-endian.
    width, height = (int.from_bytes(picture[at : at + 2], "little") for at in (6, 8))
    return Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=picture)
