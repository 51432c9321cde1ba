"""The trace of a step holds every rank's operations on one time axis."""

import json

import torch
from ranks_at_work import run_on_ranks

from siirl.dag_worker.step_trace import join_traces, traced_step


def step(ranks, folder):
    with traced_step(folder, step=2, ranks=ranks):
        torch.ones(2, 2) @ torch.ones(2, 2)


def test_one_file_holds_the_products_of_all_ranks(tmp_path):
    folder = tmp_path / "profile"
    folder.mkdir()
    run_on_ranks(step, folder)
    (file,) = folder.iterdir()
    assert file.name == "step_00000002.json"
    events = json.loads(file.read_text())["traceEvents"]
    products = {event["pid"].split(":")[0] for event in events if event.get("name") == "aten::mm"}
    assert products == {"rank 0", "rank 1"}


def test_traces_of_ranks_with_different_clocks_share_one_axis(tmp_path):
    parts = []
    for rank, base in enumerate((1_000_000, 4_000_000)):
        part = tmp_path / f"{rank}.json"
        event = {"name": "x", "ts": 10.0, "pid": 7}
        part.write_text(json.dumps({"baseTimeNanoseconds": base, "traceEvents": [event]}))
        parts.append(part)
    join_traces(parts, tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert [(event["pid"], event["ts"]) for event in events] == [
        ("rank 0: 7", 10.0),
        ("rank 1: 7", 3010.0),
    ]
