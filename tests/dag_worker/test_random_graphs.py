"""Random graphs give the results of a plain interpreter of the rules in docs/graphs.md.

The interpreter works on rows as dicts and knows which columns a node writes; `Dataflow` works on
tensors and finds out.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from siirl.dag_worker.dataflow import Dataflow
from siirl.data_coordinator.protocol.batch import select_rows, shallow_copy, texts
from siirl.errors import ConfigError
from siirl.execution.dag import NodeOutput, NodeRole, NodeType, Pipeline, columns
from siirl.execution.dag.resource_groups import cut_graph

PROMPTS = (0, 1, 2)
MORE = (10, 11)
PRIME = 10007
CALLS = ("in place", "requests more prompts after", "asks for more prompts after")
"""What a function does that is refused, because another node would get too few or other rows."""


@dataclass(frozen=True)
class Step:
    """A node of a random graph."""

    name: str
    kind: str
    column: str
    number: int
    dependencies: tuple[str, ...]
    declares: bool
    options: dict = field(default_factory=dict)

    @property
    def reads(self):
        loads = self.options.get("node_type") is NodeType.DATA_LOAD
        return () if loads else self.dependencies

    def rows(self, rows):
        """Rows after this node, and the columns that it writes."""
        if self.kind == "episodes":
            ids = [(row, f"{row['index']}/{n}") for row in rows for n in range(1 + self.number % 2)]
            return [{**row, "uid": uid, "s": checksum(uid)} for row, uid in ids], {"uid", "s"}
        if self.kind == "keep":
            return [row for row in rows if checksum(identity(row)) % 3 != self.number % 3], set()
        if self.kind == "reverse":
            return rows[::-1], set()
        if self.kind == "write":
            written = [{**row, self.column: self._written(row)} for row in rows]
            return written, {self.column}
        if self.kind == "in place" and all(self.column in row for row in rows):
            return [{**row, self.column: self._changed(row)} for row in rows], {self.column}
        return rows, set()

    def _written(self, row):
        return (checksum(identity(row)) + self.number) % PRIME

    def _changed(self, row):
        return row[self.column] + 1000 * (1 + self.number)

    def function(self):
        """The same on a TensorDict."""

        def run(batch):
            rows = rows_of(batch)
            after, _ = self.rows(rows)
            if self.kind == "episodes":
                times = 1 + self.number % 2
                batch = select_rows(batch, [at for at in range(len(rows)) for _ in range(times)])
                batch["uid"] = NonTensorStack(*[row["uid"] for row in after])
                batch["s"] = torch.tensor([row["s"] for row in after])
            elif self.kind == "keep":
                batch = select_rows(batch, [at for at, row in enumerate(rows) if row in after])
            elif self.kind == "reverse":
                batch = select_rows(batch, list(range(len(rows)))[::-1])
            elif self.kind == "write":
                batch[self.column] = torch.tensor([row[self.column] for row in after]).long()
            elif self.kind == "in place" and self.column in batch.keys():
                batch[self.column] += 1000 * (1 + self.number)
            return batch

        provides = {"episodes": ["uid", "s"], "write": [self.column]}.get(self.kind, [])
        return columns(provides=provides)(run) if self.declares else run


def identity(row):
    return row.get("uid", row["index"])


def checksum(key):
    return sum((at + 7) * ord(letter) for at, letter in enumerate(str(key))) % 1009


def rows_of(batch):
    values = {
        name: value.tolist() if isinstance(value, torch.Tensor) else texts(batch, name)
        for name, value in batch.items()
    }
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def random_steps(chance):
    steps, sampled = [], set()
    for number in range(chance.randint(2, 8)):
        count = min(number, chance.choice((0, 1, 1, 1, 2, 2, 3)))
        before = tuple(step.name for step in chance.sample(steps, count))
        kinds = ["keep", "reverse", "pass", "write", "write", "in place"]
        kind = chance.choice(kinds if sampled & {*before} else [*kinds, *["episodes"] * 5])
        column = chance.choice(("a", "b", f"own{number}", f"own{number}", "s"))
        step = Step(f"n{number}", kind, column, number, before, chance.random() < 0.5)
        if before and chance.random() < 0.05:
            step = replace(step, options={"node_type": NodeType.DATA_LOAD})
        if kind == "episodes" or sampled & {*step.reads}:
            sampled.add(step.name)
        steps.append(step)
    return steps


class Refused(Exception):
    """Two branches wrote one column."""


def interpreted(steps, *, prompts):
    """Rows that each node gets."""
    given, out, writers, passed = {}, {}, {}, {}
    for step in steps:
        passed[step.name] = {*step.reads}.union(*(passed[name] for name in step.reads))
        writers[step.name] = joined_writers([writers[name] for name in step.reads], passed)
        if not step.reads:
            writers[step.name] = {"index": ""}
            rows = [{"index": index} for index in prompts(step.name)]
        else:
            rows = join([out[name] for name in step.reads], [writers[n] for n in step.reads],
                        writers[step.name])  # fmt: skip
        given[step.name] = rows
        out[step.name], written = step.rows(rows)
        writers[step.name] |= dict.fromkeys(written, step.name)
    return given


def joined_writers(branches, passed):
    found = {}
    for column in dict.fromkeys(name for branch in branches for name in branch):
        wrote = {branch[column] for branch in branches if column in branch}
        last = [one for one in wrote if all(it in ("", one, *passed.get(one, ())) for it in wrote)]
        if not last:
            raise Refused(column)
        found[column] = last[0]
    return found


def join(branches, writers, joined):
    leader = next((at for at, names in enumerate(writers) if "uid" in names), 0)
    keys = ["uid" if {"uid"} <= {*names} & {*writers[leader]} else "index" for names in writers]
    by_key = [{row[key]: row for row in rows} for key, rows in zip(keys, branches, strict=True)]
    rows = []
    for row in branches[leader]:
        parts = [there.get(row[key]) for key, there in zip(keys, by_key, strict=True)]
        if None not in parts:
            rows.append({
                column: next(part[column] for part, names in zip(parts, writers, strict=True)
                             if names.get(column) == writer)
                for column, writer in joined.items()
            })  # fmt: skip
    return rows


class Run:
    """A step of `Dataflow`; `asks` is the node that asks for more prompts once."""

    def __init__(self, steps, *, asks=None):
        pipeline = Pipeline("random")
        for step in steps:
            pipeline.add_node(step.name, step.function(), step.dependencies, **step.options)
        self.graph, self.asks, self.got = pipeline.build(), asks, {}
        flow = Dataflow(self.graph, call=self._call, begin=lambda node, batch: None, draw=draw)
        flow.run_step()

    def _call(self, node, batch, started):
        self.got.setdefault(node.node_id, []).append(rows_of(batch))
        output = node.run(batch=batch, copy=shallow_copy)
        if node.node_id == self.asks:
            self.asks, output.more_prompts = None, len(MORE)
        return output


def draw(group, more):
    prompts = MORE if more else PROMPTS
    return TensorDict({"index": torch.tensor(prompts)}, batch_size=[len(prompts)])


def outcome(steps, *, prompts, asks=None):
    """`same`, or why the graph is refused; fails where the interpreter finds something else."""
    try:
        wanted = interpreted(steps, prompts=prompts)
    except Refused:
        with pytest.raises(ConfigError, match=r"both wrote the column|in place"):
            Run(steps, asks=asks)
        return "two writers"
    try:
        run = Run(steps, asks=asks)
    except ConfigError as error:
        [reason] = [call for call in CALLS if call in str(error)]
        return reason
    for step in steps:
        if step.name == asks:
            continue  # its second input holds its first output
        rounds = run.got[step.name]
        assert len(rounds) == 1 + (asks is not None and step.name in run.graph.get_writers(asks))
        assert in_order([row for rows in rounds for row in rows]) == in_order(wanted[step.name])
    return "same"


def in_order(rows):
    return sorted(sorted(row.items()) for row in rows)


def test_random_graphs_run_as_the_interpreter_runs_them():
    found = Counter(
        outcome(random_steps(random.Random(seed)), prompts=lambda name: PROMPTS)
        for seed in range(200)
    )
    assert found["same"] > 100 and found["two writers"] > 10 and found["in place"] > 5


def refilled(seed):
    """A random graph in which one node, a filter, asks for more prompts."""
    chance = random.Random(seed)
    steps = random_steps(chance)
    at = chance.randrange(len(steps))
    role = NodeRole.DYNAMIC_SAMPLING if chance.random() < 0.8 else NodeRole.DEFAULT
    options = {**steps[at].options, "node_role": role}
    steps[at] = replace(steps[at], kind=chance.choice(("keep", "pass")), options=options)
    lines = {}
    for step in steps:
        lines[step.name] = {step.name}.union(*(lines[name] for name in step.reads))
    name = steps[at].name
    met = set().union(*(line for line in lines.values() if name in line))
    return outcome(
        steps, prompts=lambda entry: (*PROMPTS, *MORE) if entry in met else PROMPTS, asks=name
    )


def test_after_a_refill_every_later_node_gets_the_rows_of_all_prompts():
    found = Counter(refilled(seed) for seed in range(200))
    assert found["same"] > 100
    assert all(found[call] for call in CALLS)


def in_two_groups(seed):
    """A random graph, cut into a part that rolls out and one that trains."""
    chance = random.Random(seed)
    steps = []
    for step in random_steps(chance):
        acting = {"node_role": NodeRole.ROLLOUT, "node_type": NodeType.MODEL_INFERENCE}
        options = acting if step.kind == "episodes" else step.options
        if chance.random() < 0.15:
            options = {**options, "group": chance.choice(("rollout", "train"))}
        steps.append(replace(step, options=options))
    steps.append(
        Step("end", "pass", "", 0, (chance.choice(steps).name,), False, {"group": "train"})
    )
    try:
        wanted = interpreted(steps, prompts=lambda name: PROMPTS)
    except Refused:
        return "two writers"
    try:
        got = run_parts(steps)
    except ConfigError as error:
        return next(reason for reason in CUTS if reason in str(error))
    joined = {name for name in got if "_and_" in name}  # added where the graph is cut
    assert {name: rows for name, rows in got.items() if name not in joined} == wanted
    return "joined" if joined else "same"


CUTS = ("only one buffer", "reads", "gets the prompts", "belongs to it", "in place")


def run_parts(steps):
    """Rows that each node gets, with the rows of `put_` handed to `get_`."""
    pipeline, got, buffer = Pipeline("random"), {}, []
    for step in steps:
        pipeline.add_node(step.name, step.function(), step.dependencies, **step.options)
    parts = cut_graph(pipeline.build(), groups=("rollout", "train"))
    for name in ("rollout", "train"):
        part = parts[name]

        def call(node, batch, started, part=part):
            if node.node_id.startswith("put_"):
                buffer.append(batch)
            elif node.node_id.startswith("get_"):
                return NodeOutput(batch=buffer.pop())
            else:
                got[node.node_id] = rows_of(batch)
                return node.run(batch=batch, copy=shallow_copy)
            return NodeOutput(batch=batch)

        prompts = draw if name == "rollout" else nothing
        Dataflow(part, call=call, begin=lambda node, batch: None, draw=prompts).run_step()
    return got


def nothing(group, more):
    return TensorDict({}, batch_size=[0])


def test_random_graphs_run_in_two_groups_as_in_one():
    found = Counter(in_two_groups(seed) for seed in range(200))
    assert found["same"] > 40 and found["joined"] > 0
    assert all(found[reason] for reason in CUTS)
