"""report.html in another folder: the videos that it shows are inside of it."""

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from envs.base import Frames
from siirl.reporting.embedded_videos import embedded_videos
from siirl.reporting.metric_writers import MetricWriters, RunDescription
from siirl.reporting.recorder import VIDEOS_FOLDER, VideoRecorder, VideoSample
from siirl.reporting.report_page import write_report
from tests.browser import browser, needs_browser

# a busy browser may say that it has sought before there is a frame to draw
DECODES = """
Promise.all([...document.querySelectorAll("video")].map((video) => new Promise((done) => {
  video.onerror = () => done(video.error.message);
  video.onseeked = () => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    const paper = canvas.getContext("2d");
    const draw = () => {
      paper.drawImage(video, video.videoWidth / 2, video.videoHeight - 8, 1, 1, 0, 0, 1, 1);
      const [level, , , opaque] = paper.getImageData(0, 0, 1, 1).data;
      opaque ? done(level) : setTimeout(draw, 20);
    };
    draw();
  };
  const seek = () => { video.currentTime = video.duration / 2; };
  video.readyState ? seek() : video.onloadedmetadata = seek;
})))
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A held-out episode filmed at steps 0 and 2 in light grey, and a training episode."""
    folder = tmp_path / "run"
    folder.mkdir()
    with MetricWriters([], RunDescription(folder, total_steps=2)) as writers:
        for step in (0, 2):
            writers.write(step=step, metrics={"reward/mean_score": 0.5})
    with VideoRecorder(folder / VIDEOS_FOLDER) as recorder:
        for kind, step in (("val", 0), ("val", 2), ("train", 1)):
            sample = VideoSample(
                *(f"{kind}-{step:06d}-a", "push", ""), kind=kind, step=step, seed=1, success=False
            )
            frames = Frames(np.full((10, 64, 64, 3), 200, np.uint8), tuple(range(10)))
            recorder.record(frames, sample)
    return folder


def sources(page: Path) -> list[str]:
    return re.findall(r'<video[^>]* src="([^"]*)"', page.read_text())


def test_the_page_of_a_finished_run_contains_each_shown_video_once(run: Path) -> None:
    shown = sources(write_report(run))
    files = [f"val/step_{step:06d}/fail_val-{step:06d}-a.mp4" for step in (0, 2)]
    files.append("train/step_000001/fail_train-000001-a.mp4")
    assert [base64.b64decode(source.partition(",")[2]) for source in shown] == [
        (run / VIDEOS_FOLDER / file).read_bytes() for file in files
    ]


def test_the_page_of_a_running_job_links_its_videos(run: Path) -> None:
    shown = sources(write_report(run, live_s=10))
    assert [source.partition("/")[0] for source in shown] == ["videos"] * 3


def test_videos_beyond_the_total_size_are_linked_and_counted(run: Path) -> None:
    large = run / VIDEOS_FOLDER / "val" / "step_000002" / "fail_val-000002-a.mp4"
    with large.open("ab") as file:
        file.truncate(18_000_001)
    page = write_report(run)
    kinds = [source.partition(":")[0] for source in sources(page)]
    assert kinds == ["data", "videos/val/step_000002/fail_val-000002-a.mp4", "data"]
    assert "up to 18 MB; 1 of those shown" in page.read_text()


def test_a_file_outside_of_the_folder_is_not_embedded(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    (tmp_path / "secret").write_text("x")
    (videos / "link.mp4").symlink_to(tmp_path / "secret")
    named = ("link.mp4", "missing.mp4", "a\0b", "n" * 999)
    assert embedded_videos([{"video": name} for name in named], folder=videos) == {}


@needs_browser
def test_a_copied_page_plays_its_videos(run: Path, tmp_path: Path) -> None:
    """Light grey of 200 decodes to about 200."""
    copy = tmp_path / "elsewhere" / "report.html"
    copy.parent.mkdir()
    write_report(run).rename(copy)
    run.rename(tmp_path / "gone")
    with browser(tmp_path / "home") as page:
        page.open(copy, width=800, height=600)
        assert page.run(DECODES) == pytest.approx([200] * 3, abs=8)
