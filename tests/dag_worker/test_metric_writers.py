"""metrics.jsonl, TensorBoard and the choice of loggers."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from siirl.dag_worker.jsonl import JsonlFile, read_rows
from siirl.dag_worker.metric_writers import METRICS_FILE, TENSORBOARD_FOLDER, MetricWriters, RunDescription, check_loggers
from siirl.errors import ConfigError, UnknownNameError


def test_each_step_is_one_line_at_once(tmp_path: Path) -> None:
    with MetricWriters([], RunDescription(tmp_path, total_steps=2)) as writers:
        writers.write(step=1, metrics={"actor/lr": 0.5})
        row = json.loads((tmp_path / METRICS_FILE).read_text())
        assert (row["step"], row["actor/lr"]) == (1, 0.5)


def test_a_distribution_is_written_as_quantiles(tmp_path: Path) -> None:
    with MetricWriters([], RunDescription(tmp_path, total_steps=1)) as writers:
        writers.write(step=1, metrics={"reward/score": [0.0, 1.0, 2.0, 3.0, 4.0], "reward/failure_score": []})
    (row,) = read_rows(tmp_path / METRICS_FILE)
    assert row["reward/score"] == {"count": 5, "min": 0.0, "p25": 1.0, "p50": 2.0, "p75": 3.0, "max": 4.0}
    assert row["reward/failure_score"] == {"count": 0}


def test_nan_becomes_null_so_that_every_line_is_json(tmp_path: Path) -> None:
    with MetricWriters([], RunDescription(tmp_path, total_steps=1)) as writers:
        writers.write(step=1, metrics={"actor/loss": float("nan"), "actor/grad_norm": float("inf")})
    (row,) = read_rows(tmp_path / METRICS_FILE)
    assert (row["actor/loss"], row["actor/grad_norm"]) == (None, None)


def test_tensorboard_has_scalars_and_histograms(tmp_path: Path) -> None:
    with MetricWriters(["tensorboard"], RunDescription(tmp_path, total_steps=2)) as writers:
        writers.write(step=1, metrics={"actor/lr": 0.5, "reward/score": [0.0, 1.0]})
        writers.write(step=2, metrics={"actor/lr": 0.25, "reward/score": []})
    events = EventAccumulator(str(tmp_path / TENSORBOARD_FOLDER)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("actor/lr")] == [(1, 0.5), (2, 0.25)]
    assert [event.step for event in events.Histograms("reward/score")] == [1]


def test_a_resumed_run_drops_the_steps_that_it_does_again(tmp_path: Path) -> None:
    for first_step in (0, 2):
        with MetricWriters([], RunDescription(tmp_path, total_steps=3, first_step=first_step)) as writers:
            for step in range(first_step, 4):
                writers.write(step=step, metrics={"actor/updates": float(first_step)})
    rows = [(row["step"], row["actor/updates"]) for row in read_rows(tmp_path / METRICS_FILE)]
    assert rows == [(0, 0.0), (1, 0.0), (2, 2.0), (3, 2.0)]


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"step": 1}\n{"ste')
    assert [row["step"] for row in read_rows(file)] == [1]
    JsonlFile(file, first_step=2).close()
    assert file.read_text() == '{"step": 1}\n'


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"ste\n{"step": 1}\n')
    with pytest.raises(ValueError, match="line 1"):
        list(read_rows(file))


def test_an_unknown_logger_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"tensorboards.*tensorboard"):
        check_loggers(["console", "tensorboards"])


def test_wandb_that_is_not_installed_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="pip install wandb"):
        check_loggers(["wandb"])
