"""report.html: made from the files of a run folder, and self-contained."""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from envs.base import Frames
from siirl.errors import MissingAssetError
from siirl.report import main
from siirl.reporting.comparison import write_comparison
from siirl.reporting.metric_writers import MetricWriters, RunDescription
from siirl.reporting.recorder import VIDEOS_FOLDER, VideoRecorder, VideoSample
from siirl.reporting.report_page import write_report


class Links(HTMLParser):
    """Collects what a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href") and value]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of two steps with an evaluation before and after, and one video."""
    folder = tmp_path_factory.mktemp("runs") / "<demo>" / "now"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("trainer: {seed: 0}  # a & b\n")
    with MetricWriters([], RunDescription(folder, total_steps=2)) as writers:
        writers.write(step=0, metrics={"val/push/successes": 10.0, "val/push/episodes": 100.0})
        writers.write(
            step=1,
            metrics={"rollout/success_rate": 0.2, "time/generate_s": 1.0, "reward/mean_score": 0.3},
        )
        after = {"val/push/successes": 90.0, "val/push/episodes": 100.0}
        writers.write(
            step=2,
            metrics={
                "rollout/success_rate": 0.8,
                "time/generate_s": 1.0,
                "reward/mean_score": 0.9,
                **after,
            },
        )
    with VideoRecorder(folder / VIDEOS_FOLDER) as recorder:
        video = VideoSample(
            uid="a/b", task="push", instruction="", kind="val", step=2, seed=1, success=False
        )
        recorder.record(Frames(np.zeros((1, 64, 64, 3), np.uint8), (0,)), video)
    return write_report(folder)


def test_success_before_and_after_with_intervals(report: Path) -> None:
    page = report.read_text()
    assert "10.0 % [5.5, 17.4] (10/100)" in page
    assert "90.0 % [82.6, 94.5] (90/100)" in page
    assert "+80.0 points, intervals are apart" in page


def test_an_evaluation_by_the_reward_alone_is_one(tmp_path: Path) -> None:
    """Rewards 0 and 1 twice each, then 1 four times: mean 0.5, s = sqrt(1/3), 3.18245 * 0.57735 / 2
    = 0.9187; no spread afterwards.
    """
    with MetricWriters([], RunDescription(tmp_path, total_steps=1)) as writers:
        before = {
            "val/all/mean_score": 0.5,
            "val/all/score_std": 3**-0.5,
            "val/all/scored_episodes": 4.0,
        }
        writers.write(step=0, metrics=before)
        writers.write(
            step=1, metrics=before | {"val/all/mean_score": 1.0, "val/all/score_std": 0.0}
        )
    page = write_report(tmp_path).read_text()
    assert "<td>all</td><td>0.5 [-0.419, 1.42] (n=4)</td><td>1 (n=4)</td><td>+0.5</td>" in page
    assert "Success on held-out episodes" not in page
    assert "had no evaluation" not in page


def test_the_page_refers_only_to_existing_videos(report: Path) -> None:
    links = Links()
    links.feed(report.read_text())
    outside = [link for link in links.found if not link.startswith(("#", "data:video/mp4;base64,"))]
    assert set(outside) == {"videos/val/step_000002/fail_a%252Fb.mp4"}
    assert (report.parent / "videos/val/step_000002/fail_a%2Fb.mp4").is_file()


def test_texts_are_escaped(report: Path) -> None:
    page = report.read_text()
    assert "&lt;demo&gt;" in page
    assert "<demo>" not in page
    assert "# a &amp; b" in page


def test_curves_are_drawn_in_the_page(report: Path) -> None:
    page = report.read_text()
    assert page.count("<svg") == 4  # evaluation, success, reward, seconds
    assert "Seconds per stage" in page


def test_rows_of_another_file_are_not_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    assert main([str(tmp_path)]) == 2
    assert "name the folder of a run" in capsys.readouterr().err
    assert main([str(tmp_path), "--rollouts", "--count", "0"]) == 2
    assert "--count 0 must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"[]", "is of type list, not a row"),
        (b"3", "is of type int, not a row"),
        (b"null", "is of type NoneType, not a row"),
        (b'{"step": 1', "is not JSON"),
        (b'{"step": "\xff"}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"step": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
    ids=["list", "number", "null", "cut off", "not UTF-8", "deep", "long number"],
)
def test_a_damaged_line_is_named_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes, sentence: str
) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    assert main([str(tmp_path)]) == 1
    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.startswith(f"siirl: {file}, line 2, {sentence}") and shown.endswith(
        "Correct or delete that line."
    )


def test_values_without_a_place_in_a_diagram_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"step": 10**400},
        {"step": -1},
        {"step": 1, "notice": ["a"], "reward/mean_score": 10**400},
        {"step": 2, "reward/mean_score": 0.5},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "Reward" in write_report(tmp_path).read_text()


def test_a_folder_that_is_not_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MissingAssetError, match=r"has no metrics\.jsonl"):
        write_report(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert "siirl:" in capsys.readouterr().err


@pytest.mark.parametrize("option", [(), ("--rollouts",), ("--export", "curves.csv")])
def test_a_folder_that_does_not_exist_is_named_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    missing = tmp_path / "nowhere"
    assert main([str(missing), *option]) == 2
    assert f"{missing} does not exist or is not a folder" in capsys.readouterr().err


def finished_run(folder: Path, *, seed: int, successes: float) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"trainer: {{seed: {seed}}}\n")
    with MetricWriters([], RunDescription(folder, total_steps=1)) as writers:
        metrics = {"val/all/successes": successes, "val/all/episodes": 10.0}
        writers.write(step=1, metrics=metrics | {"reward/mean_score": 0.5, "actor/ppo_kl": 0.1})
    return folder


def test_runs_are_compared_with_intervals_over_episodes_and_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates 0.5 and 0.7: mean 0.6, s = 0.1414, t(0.975, 1) = 12.71, so that the interval is cut."""
    runs = [
        finished_run(tmp_path / "one" / "a", seed=1, successes=5.0),
        finished_run(tmp_path / "two" / "a", seed=2, successes=7.0),
    ]
    file = tmp_path / "both.html"
    assert main([*map(str, runs), "--output", str(file)]) == 0
    assert capsys.readouterr().out.strip() == str(file)
    page = file.read_text()
    assert "70.0 % [39.7, 89.2] (7/10)" in page
    assert "+20.0 points, intervals overlap" in page
    assert "60.0 % [0.0, 100.0] over 2 seeds" in page
    assert "<code>trainer.seed</code>" in page


def test_a_column_of_a_comparison_names_the_step_of_its_evaluation(tmp_path: Path) -> None:
    runs = [
        finished_run(tmp_path / "one" / "a", seed=1, successes=5.0),
        finished_run(tmp_path / "two" / "a", seed=2, successes=7.0),
    ]
    with (runs[1] / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"step": 9, "reward/mean_score": 0.5}) + "\n")
    page = write_comparison(runs, tmp_path / "both.html").read_text()
    assert "<th>one, step 1</th><th>two, step 1</th>" in page


def test_runs_of_other_tasks_are_not_subtracted(tmp_path: Path) -> None:
    runs = [
        finished_run(tmp_path / "one" / "a", seed=1, successes=5.0),
        finished_run(tmp_path / "two" / "a", seed=2, successes=7.0),
    ]
    file = runs[1] / "metrics.jsonl"
    task = {"val/sorting/successes": 1.0, "val/sorting/episodes": 2.0}
    rows = [json.loads(line) | task for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_comparison(runs, tmp_path / "both.html").read_text()
    assert "other tasks" in page
    assert "points, intervals" not in page


def test_the_page_of_this_folder_is_titled_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished_run(tmp_path / "one" / "a", seed=1, successes=5.0))
    assert "<title>one, a</title>" in write_report(Path()).read_text()


def test_a_run_is_not_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(finished_run(tmp_path / "one" / "a", seed=1, successes=5.0))
    assert main([run, run]) == 2
    assert "named twice" in capsys.readouterr().err


def test_curves_are_exported_as_a_table(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "one" / "a", seed=1, successes=5.0)
    assert main([str(run), "--export", str(tmp_path / "curves.csv")]) == 0
    head, row = (tmp_path / "curves.csv").read_text().splitlines()
    assert head.split(",")[:4] == ["run", "step", "actor/ppo_kl", "reward/mean_score"]
    assert row.split(",")[:4] == ["one", "1", "0.1", "0.5"]


def test_every_chart_is_exported_as_pdf_and_svg(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "one" / "a", seed=1, successes=5.0)
    assert main([str(run), "--export", str(tmp_path / "charts")]) == 0
    names = {file.name for file in (tmp_path / "charts").iterdir()}
    assert {"reward.pdf", "reward.svg", "success_on_held_out_episodes.pdf"} <= names
    assert (tmp_path / "charts" / "reward.pdf").read_bytes().startswith(b"%PDF")


def test_all_charts_of_two_runs_are_exported_as_one_pdf(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / name / "a", seed=1, successes=5.0) for name in ("one", "two")]
    assert main([*map(str, runs), "--export", str(tmp_path / "charts.pdf")]) == 0
    assert (tmp_path / "charts.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--failures",), "--failures selects rollouts to print: add --rollouts."),
        (("--step", "0"), "--step selects rollouts to print: add --rollouts."),
        (("--rollouts", "--export", "a.csv"), "--export writes curves and --rollouts prints"),
        (("--output", "a.html"), "--output a.html is the page of a comparison: name two runs"),
        (("--export", "/dev/null"), "--export /dev/null is a file: name a folder"),
        (("again", "--output", "/"), "--output / is a folder: name a file in it."),
    ],
)
def test_a_flag_that_nothing_reads_and_an_impossible_place_are_refused(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run(tmp_path / "one" / "a", seed=1, successes=5.0)
    assert main([str(run), *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("--export", "/proc/a.csv"), ("again", "--output", "/proc/a/b.html")]
)
def test_a_place_that_cannot_be_written_is_named_with_the_remedy(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [finished_run(tmp_path / name, seed=1, successes=5.0) for name in ("one", "again")]
    words = tuple(str(runs[1]) if word == "again" else word for word in words)
    assert main([str(runs[0]), *words]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"siirl: {' '.join(words[-2:])} cannot be written: ")
    assert told.endswith("Choose another place.\n")


def test_an_export_of_another_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run(tmp_path / "one" / "a", seed=1, successes=5.0)
    assert main([str(run), "--export", "curves.xlsx"]) == 2
    assert "name a .csv file" in capsys.readouterr().err
