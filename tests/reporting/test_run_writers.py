"""Recorded configuration, videos and tables of a run, read back by each dashboard's own reader."""

import contextlib
import importlib.util
import io
import json
import math
import sqlite3
from pathlib import Path

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from siirl.errors import ConfigError, SiirlError
from siirl.reporting.metric_writers import MetricWriters, RunDescription
from siirl.reporting.new_recordings import MOST_ROLLOUTS, NewRecordings, final_tables
from siirl.reporting.tensorboard_writer import GIF_FRAMES, GIF_WIDTH, TENSORBOARD_FOLDER, markdown
from siirl.reporting.writer_contract import Table
from tests.reporting.recorded_run import AFTER, BEFORE, record_rollout, record_video, write_run

needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is optional and not installed"
)


needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="mlflow is optional and not installed"
)
needs_trackio = pytest.mark.skipif(
    importlib.util.find_spec("trackio") is None, reason="trackio is optional and not installed"
)
SUCCESS = [["push", "before", 1, 4, 0.25], ["push", "after", 3, 4, 0.75]]


def texts(events: EventAccumulator, name: str) -> list[tuple[int, str]]:
    return [
        (event.step, event.tensor_proto.string_val[0].decode())
        for event in events.Tensors(f"{name}/text_summary")
    ]


@pytest.fixture(scope="module")
def tensorboard(tmp_path_factory: pytest.TempPathFactory) -> EventAccumulator:
    folder = tmp_path_factory.mktemp("run")
    write_run("tensorboard", folder)
    return EventAccumulator(str(folder / TENSORBOARD_FOLDER)).Reload()


def test_tensorboard_has_the_resolved_configuration_and_the_tags(
    tensorboard: EventAccumulator,
) -> None:
    ((_, config),) = texts(tensorboard, "config")
    assert json.loads(config) == {"trainer": {"seed": 11}}
    assert texts(tensorboard, "tags") == [(0, "paper, push")]


def test_tensorboard_plays_a_recorded_episode(tensorboard: EventAccumulator) -> None:
    (event,) = tensorboard.Images("videos/val")
    animation = Image.open(io.BytesIO(event.encoded_image_string))
    # 70 frames: every third is shown, 24 of them.
    assert (event.step, animation.n_frames, animation.format) == (1, 24, "GIF")
    assert animation.n_frames <= GIF_FRAMES
    assert animation.size == (event.width, event.height)
    assert event.width == GIF_WIDTH


def test_tensorboard_names_the_file_of_a_video(tensorboard: EventAccumulator) -> None:
    ((step, text),) = texts(tensorboard, "videos/val")
    assert step == 1
    assert text.startswith("- push: success, reward 0.25, step 1, seed 7: `")
    assert text.endswith("videos/val/step_000001/success_a.mp4`")


def test_tensorboard_shows_a_rollout_with_its_markup_as_text(tensorboard: EventAccumulator) -> None:
    ((step, table),) = texts(tensorboard, "rollouts/train")
    assert step == 1
    assert table.splitlines() == [
        "| step | task | prompt | answer | reward | success | truncated |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| 1 | sums | 1+2= | a&#124;b &lt;i&gt;<br>3 | 0.5 | True | False |",
    ]


def test_tensorboard_ends_with_the_table_of_success(tensorboard: EventAccumulator) -> None:
    ((step, table),) = texts(tensorboard, "final/success")
    assert step == 1
    assert "| push | before | 1 | 4 | 0.25 |" in table
    assert "| push | after | 3 | 4 | 0.75 |" in table


@needs_wandb
def test_wandb_gets_configuration_tags_videos_rollouts_and_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.reporting.test_metric_writers import read_wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    write_run("wandb", tmp_path)
    run, rows = read_wandb(tmp_path)
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["trainer"] == {"seed": 11}
    assert list(run.tags) == ["paper", "push"]
    last = {
        name.split("/_type")[0]: value
        for name, value in rows[-1].items()
        if name.endswith("/_type")
    }
    assert last == {
        "videos/val": "videos",
        "rollouts/train": "table-file",
        "final/success": "table-file",
    }
    (files,) = tmp_path.glob("wandb/offline-run-*/files/media")
    (video,) = files.glob("videos/videos/*.mp4")
    assert video.read_bytes() == (tmp_path / "videos/val/step_000001/success_a.mp4").read_bytes()
    (rollouts,) = files.glob("table/rollouts/*.table.json")
    assert json.loads(rollouts.read_text())["data"] == [
        [1, "sums", "1+2=", "a|b <i>\n3", 0.5, True, False]
    ]
    (success,) = files.glob("table/final/*.table.json")
    assert [row[:5] for row in json.loads(success.read_text())["data"]] == SUCCESS


@needs_mlflow
def test_mlflow_gets_configuration_tags_metrics_videos_rollouts_and_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_run("mlflow", tmp_path)
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=address, registry_uri=address)
    experiment = client.get_experiment_by_name("robots")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params == {"trainer.seed": "11"}
    assert (run.data.tags["paper"], run.data.tags["push"]) == ("true", "true")
    history = client.get_metric_history(run.info.run_id, "val/push/successes")
    assert [(metric.step, metric.value) for metric in history] == [(0, 1.0), (1, 3.0)]
    (artifacts,) = tmp_path.glob("mlflow_artifacts/*/artifacts")
    assert json.loads((artifacts / "config.json").read_text()) == {"trainer": {"seed": 11}}
    (video,) = artifacts.glob("videos/val/step_000001/*.mp4")
    assert video.read_bytes() == (tmp_path / "videos/val/step_000001/success_a.mp4").read_bytes()
    rollouts = json.loads((artifacts / "rollouts/train/step_000001.json").read_text())
    assert rollouts["data"] == [[1, "sums", "1+2=", "a|b <i>\n3", 0.5, True, False]]
    success = json.loads((artifacts / "final/success.json").read_text())
    assert [row[:5] for row in success["data"]] == SUCCESS
    listed = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert [each["path"] for each in listed] == [
        *("rollouts/train/step_000001.json", "final/success.json")
    ]


@needs_mlflow
def test_mlflow_takes_any_name_and_the_quantiles_of_a_distribution(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    description = RunDescription(tmp_path, total_steps=1, config={"a": {"b": "x" * 9000}})
    with MetricWriters(["mlflow"], description) as writers:
        writers.write(step=1, metrics={"mine=é": 1.0, "lengths": [1.0, 3.0], "bad": math.nan})
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=address, registry_uri=address)
    (run,) = client.search_runs([client.get_experiment_by_name("siirl").experiment_id])
    assert run.data.metrics["mine__"] == 1.0
    assert run.data.metrics["lengths/mean"] == 2.0
    assert math.isnan(run.data.metrics["bad"])


@needs_mlflow
def test_a_server_that_does_not_answer_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ConfigError, match="unset it to keep the data in the run folder"):
        MetricWriters(["mlflow"], RunDescription(tmp_path, total_steps=1))


@needs_trackio
def test_trackio_gets_configuration_tags_metrics_videos_rollouts_and_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    write_run("trackio", tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "robots.db")) as database:
        ((name, config),) = database.execute("select run_name, config from configs")
        rows = [
            (step, json.loads(logged))
            for step, logged in database.execute("select step, metrics from metrics order by id")
        ]
    assert name == f"first {tmp_path.name}"
    stored = json.loads(config)
    assert (stored["trainer"], stored["tags"]) == ({"seed": 11}, ["paper", "push"])
    assert rows[0] == (0, BEFORE)
    assert rows[1] == (1, {**AFTER, "actor/lr": 0.5})
    logged = {name: value for _, row in rows[2:] for name, value in row.items()}
    assert logged["videos/val/0"]["caption"] == "push: success, reward 0.25, step 1, seed 7"
    (video,) = (tmp_path / "trackio").rglob("*.mp4")
    assert video.read_bytes() == (tmp_path / "videos/val/step_000001/success_a.mp4").read_bytes()
    (rollout,) = logged["rollouts/train"]["_value"]
    assert (rollout["prompt"], rollout["answer"]) == ("1+2=", "a|b <i>\n3")
    assert [list(row.values())[:5] for row in logged["final/success"]["_value"]] == SUCCESS


def test_a_recording_is_found_once(tmp_path: Path) -> None:
    recordings = NewRecordings(tmp_path)
    assert (recordings.videos(), recordings.rollouts()) == ([], {})
    record_video(tmp_path, step=1)
    record_rollout(tmp_path, step=1)
    assert [video.frames for video in recordings.videos()] == [70]
    assert [row[0] for row in recordings.rollouts()["train"].rows] == [1]
    assert (recordings.videos(), recordings.rollouts()) == ([], {})


def test_a_video_that_is_encoded_after_its_step_comes_later(tmp_path: Path) -> None:
    recordings = NewRecordings(tmp_path)
    record_video(tmp_path, step=1, uid="early")
    assert len(recordings.videos()) == 1
    record_video(tmp_path, step=2, uid="late")
    (late,) = recordings.videos()
    assert late.file.name == "success_late.mp4"


def test_a_table_of_rollouts_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "rollouts" / "train").mkdir(parents=True)
    record_rollout(tmp_path, step=1)
    file = tmp_path / "rollouts" / "train" / "step_000001.jsonl"
    file.write_text(file.read_text() * (MOST_ROLLOUTS + 1))
    assert len(NewRecordings(tmp_path).rollouts()["train"].rows) == MOST_ROLLOUTS


def test_a_run_without_an_evaluation_has_no_final_table() -> None:
    assert final_tables([]) == {}
    assert final_tables([{"actor/lr": 0.5}]) == {}


def test_a_single_evaluation_is_the_one_after() -> None:
    assert [row[1] for row in final_tables([AFTER])["final/success"].rows] == ["after"]
    assert [row[1] for row in final_tables([BEFORE, BEFORE, AFTER])["final/success"].rows] == [
        *("before", "after")
    ]


def test_a_mean_reward_has_a_table_of_its_own() -> None:
    tables = final_tables([{"val/all/mean_score": 0.5, "val/all/scored_episodes": 1.0}])
    assert {name: table.rows for name, table in tables.items()} == {
        "final/reward": [["all", "after", 1, 0.5, None, None]]
    }


def test_a_cell_without_a_value_is_empty() -> None:
    assert markdown(Table(("a", "b"), [(None, 0.123456)])).endswith("|  | 0.1235 |")


def test_a_video_that_cannot_be_read_is_reported_with_the_remedy(tmp_path: Path) -> None:
    record_video(tmp_path, step=1)
    (tmp_path / "videos/val/step_000001/success_a.mp4").write_bytes(b"no video")
    with (
        MetricWriters(["tensorboard"], RunDescription(tmp_path, total_steps=1)) as writers,
        pytest.raises(
            SiirlError, match=r"(?s)success_a\.mp4 cannot be shown.*trainer\.record_episodes=0"
        ),
    ):
        writers.write(step=1, metrics={})
