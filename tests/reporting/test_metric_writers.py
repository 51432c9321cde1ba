"""metrics.jsonl, TensorBoard and the choice of loggers."""

import importlib.util
import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from siirl.errors import ConfigError, UnknownNameError
from siirl.reporting.console import ConsoleWriter
from siirl.reporting.jsonl import JsonlFile, read_rows
from siirl.reporting.metric_writers import (
    METRICS_FILE,
    WRITERS,
    MetricWriters,
    RunDescription,
    check_loggers,
)
from siirl.reporting.report_page import write_report
from siirl.reporting.tensorboard_writer import TENSORBOARD_FOLDER

needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is optional and not installed"
)


def test_each_step_is_one_line_at_once(tmp_path: Path) -> None:
    with MetricWriters([], RunDescription(tmp_path, total_steps=2)) as writers:
        writers.write(step=1, metrics={"actor/lr": 0.5})
        row = json.loads((tmp_path / METRICS_FILE).read_text())
        assert (row["step"], row["actor/lr"]) == (1, 0.5)


def test_a_distribution_is_written_as_quantiles(tmp_path: Path) -> None:
    with MetricWriters([], RunDescription(tmp_path, total_steps=1)) as writers:
        writers.write(
            step=1, metrics={"reward/score": [0.0, 1.0, 2.0, 3.0, 4.0], "reward/failure_score": []}
        )
    (row,) = read_rows(tmp_path / METRICS_FILE)
    assert row["reward/score"] == {
        "count": 5,
        "mean": 2.0,
        "min": 0.0,
        "p25": 1.0,
        "p50": 2.0,
        "p75": 3.0,
        "max": 4.0,
    }
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
    assert [(event.step, event.value) for event in events.Scalars("actor/lr")] == [
        (1, 0.5),
        (2, 0.25),
    ]
    assert [event.step for event in events.Histograms("reward/score")] == [1]


HOSTILE_NAMES = (
    *(
        "step",
        "time",
        "notice",
        "",
        "//",
        "a b/c d",
        "größe/日本",
        "x" * 5000,
        "new\nline",
        "a\0b",
        "<img src=x onerror=alert(1)>",
    ),
    *(
        "time/x",
        "time/$a_$b_s",
        "time/[/red]_s",
        "val/[/x]/episodes",
        "val/[/x]/successes",
        "val/y/episodes",
        "val/z/mean_score",
    ),
    *("val/w/successes", "val/w/episodes", "sampling/dropped_[/b]"),
)


def test_every_writer_and_the_report_cope_with_any_name_and_value(tmp_path: Path) -> None:
    # fewer episodes than successes
    numbers = dict.fromkeys(HOSTILE_NAMES, 2.5) | {"val/w/episodes": 1.0}
    lists = {
        "l/nan": [math.nan, 1.0, math.inf, -math.inf],
        "l/only_nan": [math.nan],
        "l/large": [1e308, -1e308],
        "time/l_s": [1.0],
    }
    with MetricWriters(
        ["console", "tensorboard"], RunDescription(tmp_path, total_steps=1)
    ) as writers:
        writers.write(step=1, metrics=numbers | lists)
    (row,) = read_rows(tmp_path / METRICS_FILE)
    assert (row["step"], row["metric/step"], row["metric/time"], row["größe/日本"]) == (
        1,
        2.5,
        2.5,
        2.5,
    )
    assert row["l/nan"]["count"] == 4
    assert "</i>$a_$b <b>" in write_report(tmp_path).read_text()  # a stage's name in the legend


def test_a_resumed_run_drops_the_steps_that_it_repeats(tmp_path: Path) -> None:
    for first_step in (0, 2):
        with MetricWriters(
            [], RunDescription(tmp_path, total_steps=3, first_step=first_step)
        ) as writers:
            for step in range(first_step, 4):
                writers.write(step=step, metrics={"actor/updates": float(first_step)})
    rows = [(row["step"], row["actor/updates"]) for row in read_rows(tmp_path / METRICS_FILE)]
    assert rows == [(0, 0.0), (1, 0.0), (2, 2.0), (3, 2.0)]


@pytest.mark.parametrize(("begins", "seconds_left"), [(False, 130.0), (True, 30.0)])
def test_the_time_left_is_measured_without_the_time_of_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool, seconds_left: float
) -> None:
    now = 0.0
    console = ConsoleWriter(total_steps=4, first_step=3, clock=lambda: now)
    monkeypatch.setitem(WRITERS, "clocked", lambda run: console)
    with MetricWriters(["clocked"], RunDescription(tmp_path, total_steps=4)) as writers:
        now = 100.0  # loads
        if begins:
            writers.begin()
        now = 130.0
        writers.write(step=3, metrics={})
        assert console.progress.seconds_left() == seconds_left


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


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_wandb_that_is_not_installed_is_refused_with_the_command_to_type() -> None:
    with pytest.raises(
        ConfigError, match=f"Type: {sys.executable} -m pip install wandb; or leave it out"
    ):
        check_loggers(["wandb"])


@needs_wandb
def test_wandb_keeps_an_offline_run_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with MetricWriters(
        ["wandb"], RunDescription(tmp_path, total_steps=2, project="robots", experiment="first")
    ) as writers:
        writers.write(step=0, metrics={"val/all/return": 0.25})
        writers.write(
            step=2,
            metrics={"actor/lr": 0.5, "reward/score": [0.0, 1.0], "reward/failure_score": []},
        )
    run, rows = read_wandb(tmp_path)
    assert (run.project, run.display_name) == ("robots", "first")
    assert [(row["_step"], row.get("val/all/return"), row.get("actor/lr")) for row in rows] == [
        (0, 0.25, None),
        (2, None, 0.5),
    ]
    assert sum(rows[1]["reward/score/values"]) == 2  # two values, in bins
    assert not any(name.startswith("reward/failure_score") for name in rows[1])


@needs_wandb
def test_wandb_without_a_key_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Runs in a separate process: wandb keeps the mode of its first run."""
    start = f"MetricWriters(['wandb'], RunDescription(Path({str(tmp_path)!r}), total_steps=2))"
    code = (
        "from pathlib import Path; from siirl.reporting.metric_writers import MetricWriters, "
        f"RunDescription; {start}"
    )
    no_key = os.environ | {
        "WANDB_MODE": "online",
        "WANDB_API_KEY": "",
        "NETRC": str(tmp_path / "netrc"),
    }
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=no_key,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    (refusal,) = [
        line for line in result.stderr.splitlines() if line.startswith("siirl.errors.ConfigError")
    ]
    assert "trainer.logger=wandb: No API key configured" in refusal
    assert "Type: wandb login; or set WANDB_MODE=offline" in refusal


def read_wandb(folder: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The run and its rows, as the file of an offline run holds them."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits until its own process has written everything
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    # behind wandb's own seven bytes
    records = [Record.FromString(data) for data in leveldb_records(file.read_bytes(), start=7)]
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    histories = [
        record.history for record in records if record.WhichOneof("record_type") == "history"
    ]
    rows = [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in history.item
        }
        for history in histories
    ]
    return run, rows


def leveldb_records(data: bytes, *, start: int) -> Iterator[bytes]:
    """Records of LevelDB's log format (its doc/log_format.md): blocks of 32 KiB, in them pieces
    with checksum, length and type.
    """
    position, record = start, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # no room for a header: the next block
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""
