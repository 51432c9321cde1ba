"""Frames of an mp4 file by number, decoded by ffmpeg (of imageio-ffmpeg) in one pass."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from siirl.interrupts import start_apart


def _last_line(said: bytes) -> str:
    """The last line of ffmpeg's output."""
    lines = said.decode(errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


class VideoFile:
    """An open video; frames are read in ascending order, and an earlier one reopens it.

    Args:
        file: Any video that ffmpeg decodes.
        stored: Height and width of the video.
        size: Height and width of the frames; None: as stored.
    """

    def __init__(
        self, file: Path, *, stored: tuple[int, int], size: tuple[int, int] | None = None
    ) -> None:
        self.file = file
        self._stored = stored
        self._size = size or stored
        self._process: subprocess.Popen[bytes] | None = None
        self._next = 0

    def take(self, numbers: Sequence[int]) -> NDArray[np.uint8]:
        """Frames with these ascending numbers: uint8 [N, H, W, 3].

        Raises:
            ValueError: The video is shorter, or cannot be decoded.
        """
        if self._process is None or numbers[0] < self._next:
            self.close()
            self._process, self._next = self._decoder(), 0
        frames = []
        for number in numbers:
            while self._next < number:
                self._frame()
            frames.append(self._frame())
        return np.stack(frames)

    def close(self) -> None:
        """End the decoder; may be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _decoder(self) -> "subprocess.Popen[bytes]":
        if not self.file.is_file():
            raise ValueError(f"There is no video {self.file}: download the data set again.")
        height, width = self._size
        scale = [] if self._size == self._stored else ["-vf", f"scale={width}:{height}:flags=area"]
        command = [
            *(imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-nostdin", "-threads", "1"),
            *("-i", str(self.file.absolute()), "-an", "-fps_mode", "passthrough", *scale),
            *("-f", "rawvideo", "-pix_fmt", "rgb24", "-"),
        ]
        return start_apart(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _frame(self) -> NDArray[np.uint8]:
        assert self._process is not None and self._process.stdout is not None
        height, width = self._size
        data = self._process.stdout.read(height * width * 3)
        if len(data) < height * width * 3:
            _, said = self._process.communicate()
            self._process = None
            raise ValueError(
                f"{self.file} ends before frame {self._next}: "
                f"{_last_line(said) or 'it is too short'}. Download "
                "the data set again."
            )
        self._next += 1
        return np.frombuffer(data, np.uint8).reshape(height, width, 3)
