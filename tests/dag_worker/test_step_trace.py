"""The trace of a step holds every rank's operations and nodes on one time axis."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
import torch
from ranks_at_work import run_on_ranks, work_on_ranks

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.dataflow import range_name
from siirl.dag_worker.step_trace import CHUNK, join_traces, traced_step
from siirl.errors import InvariantError
from siirl.execution.dag import Node, NodeType
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph

RANKS = 2
PROFILED = (
    "pipeline=ppo", "env=gymnasium", "env.id=CartPole-v1", "env.max_episode_steps=8", "env.num_servers=2", "env.envs_per_server=3",
    "cluster=local", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_epochs=1", "actor_rollout_ref.model.options={chunk_length: 1, width: 16}", "trainer.val_episodes=0",
    "trainer.record_episodes=0", "trainer.total_steps=1", "trainer.max_minutes=null", "trainer.save_freq=-1",
    "trainer.n_gpus_per_node=2", "profiler.enable=true", "profiler.steps=[1]",
)  # fmt: skip


def events_of(file):
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        return json.load(opened)["traceEvents"]


def make_part(file, *events, base=0):
    file.write_text(json.dumps({"baseTimeNanoseconds": base, "traceEvents": events}))
    return file


def joined(folder, *parts):
    join_traces(parts, folder / "all.json.gz")
    return events_of(folder / "all.json.gz")


def step(ranks, folder):
    with traced_step(folder, step=2, ranks=ranks):
        torch.ones(2, 2) @ torch.ones(2, 2)


def test_one_file_holds_the_products_of_all_ranks(tmp_path):
    folder = tmp_path / "profile"
    folder.mkdir()
    run_on_ranks(step, folder)
    (file,) = folder.iterdir()
    assert file.name == "step_00000002.json.gz"
    events = events_of(file)
    products = {event["pid"].split(":")[0] for event in events if event.get("name") == "aten::mm"}
    assert products == {"rank 0", "rank 1"}


def train(rank: int, folder: str) -> None:
    """One rank's run with a trace of its only step."""
    torch.set_num_threads(1)
    config = parse_config(PROFILED)
    worker = DAGWorker(
        config=config,
        graph=load_graph(config),
        rank=rank,
        world_size=RANKS,
        init_method=f"file://{folder}/rendezvous",
        backend="gloo",
        run_folder=Path(folder),
    )
    list(worker.run())


def test_each_rank_names_what_it_does(tmp_path):
    processes = work_on_ranks(train, (str(tmp_path),), ranks=RANKS)
    assert [process.exitcode for process in processes] == [0] * RANKS
    events = events_of(tmp_path / "profile" / "step_00000001.json.gz")
    ranges = [event for event in events if event.get("cat") == "user_annotation"]
    nodes = set(load_graph(parse_config(PROFILED)).nodes)
    passes = {"train micro-batch", "score micro-batch", "optimiser step", "weight sync"}
    for rank in range(RANKS):
        of_rank = [event for event in ranges if event["pid"].startswith(f"rank {rank}:")]
        assert {event["name"] for event in of_rank} >= nodes | passes
        sync, copied = (
            next(event for event in of_rank if event["name"] == name)
            for name in ("sync_weights", "weight sync")
        )
        assert sync["ts"] <= copied["ts"]
        assert copied["ts"] + copied["dur"] <= sync["ts"] + sync["dur"]


def test_traces_of_ranks_with_different_clocks_share_one_axis(tmp_path):
    event = {"name": "x", "ts": 10.0, "pid": 7}
    events = joined(
        tmp_path,
        make_part(tmp_path / "0.json", event, base=1_000_000),
        make_part(tmp_path / "1.json", event, base=4_000_000),
    )
    assert [(event["pid"], event["ts"]) for event in events] == [
        ("rank 0: 7", 10.0),
        ("rank 1: 7", 3010.0),
    ]


def test_arrows_stay_within_a_rank(tmp_path):
    arrows = [{"ph": "s", "id": 3}, {"ph": "f", "id": 3}, {"ph": "s", "id": 4}]
    parts = [make_part(tmp_path / f"{rank}.json", *arrows) for rank in range(2)]
    ids = [event["id"] for event in joined(tmp_path, *parts)]
    first, second = ids[:3], ids[3:]
    for ids in (first, second):
        assert ids[0] == ids[1] != ids[2]
    assert not set(first) & set(second)


def test_a_trace_is_never_in_memory_as_a_whole(tmp_path):
    names = [f'{number}: ]}}"é' for number in range(2000)]
    events = [{"name": name, "args": {"shape": [[2, 2]], "of": "x" * 2000}} for name in names]
    parts = [make_part(tmp_path / f"{rank}.json", *events) for rank in range(2)]
    size = sum(part.stat().st_size for part in parts)
    assert size > 30 * CHUNK
    tracemalloc.start()
    join_traces(parts, tmp_path / "all.json.gz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 4
    assert [event["name"] for event in events_of(tmp_path / "all.json.gz")] == names * 2
    assert [file.name for file in tmp_path.iterdir()] == ["all.json.gz"]


@pytest.mark.parametrize("events", [[], [{"name": "x" * 2 * CHUNK}]])
def test_ranks_with_no_events_or_a_long_one_are_joined(tmp_path, events):
    parts = [make_part(tmp_path / f"{rank}.json", *events) for rank in range(2)]
    assert [event["name"] for event in joined(tmp_path, *parts)] == [
        event["name"] for event in events
    ] * 2


@pytest.mark.parametrize(
    ("text", "error"),
    [("{}", InvariantError), ('{"traceEvents": [{"name": "x"}, {"na', json.JSONDecodeError)],
)
def test_a_cut_part_is_refused_and_kept(tmp_path, text, error):
    part = tmp_path / "0.json"
    part.write_text(text)
    with pytest.raises(error):
        join_traces([part], tmp_path / "all.json.gz")
    assert part.read_text() == text


def test_a_quote_in_the_id_of_a_node_leaves_the_trace_readable(tmp_path):
    name = range_name(Node(node_id='my "own" node', node_type=NodeType.COMPUTE))
    with torch.profiler.profile() as profiler, torch.profiler.record_function(name):
        pass
    profiler.export_chrome_trace(str(tmp_path / "0.json"))
    assert "my 'own' node" in [event["name"] for event in joined(tmp_path, tmp_path / "0.json")]
