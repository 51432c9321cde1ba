"""A node's input is the output of its dependencies: rows joined by uid, with all columns."""

# B row of a batch

import weakref
from concurrent.futures import Future
from threading import Timer

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from siirl.dag_worker.dataflow import Dataflow
from siirl.data_coordinator.protocol.batch import select_rows, shallow_copy, texts
from siirl.errors import ConfigError
from siirl.execution.dag import NodeOutput, NodeRole, NodeStatus, NodeType, Pipeline, columns, stage
from siirl.execution.dag.stage import declared_start


class Flow:
    """Runs a pipeline on two prompts per step; records each node's input."""

    def __init__(self, pipeline):
        self.graph = pipeline.build()
        self.seen, self.order, self.drawn = {}, [], []
        self.flow = Dataflow(self.graph, call=self._call, begin=self._begin, draw=self._draw)

    def step(self):
        self.flow.run_step()
        return self

    def _begin(self, node, batch):
        self.order.append(f"begin {node.node_id}")
        return declared_start(node.executable)(batch=batch)

    def _call(self, node, batch, started=None):
        self.order.append(node.node_id)
        self.seen[node.node_id] = batch
        return node.run(batch=batch, copy=shallow_copy, started=started)

    def _draw(self, group, more):
        first = 10 * len(self.drawn)
        self.drawn.append(more)
        return TensorDict(
            {"index": torch.arange(first, first + (more or 2))}, batch_size=[more or 2]
        )


@columns(requires=["index"], provides=["uid", "score"])
def rollout(batch):
    batch["uid"] = NonTensorStack(*[f"s{index}" for index in batch["index"].tolist()])
    batch["score"] = batch["index"].float()
    return batch


@columns(requires=["index"], provides=["hint"])
def hint(batch):
    batch["hint"] = batch["index"] + 1
    return batch


@columns(provides=["reward"])
def reward(batch):
    batch["reward"] = batch["score"] + 1
    return batch


@columns(provides=["log_prob"])
def log_prob(batch):
    batch["log_prob"] = -batch["score"]
    return batch


def keep_even(batch):
    return select_rows(batch, batch["index"] % 2 == 0)


def double_score(batch):
    batch["score"] = 2 * batch["score"]
    return batch


def passes(batch):
    return batch


def fork(**more):
    """rollout -> reward and log_prob -> join."""
    return (
        Pipeline("fork")
        .add_node("rollout", rollout)
        .add_node("reward", more.get("left", reward), ["rollout"])
        .add_node("log_prob", more.get("right", log_prob), ["rollout"])
        .add_node("join", passes, ["reward", "log_prob"])
    )


def test_branches_do_not_see_each_others_columns():
    flow = Flow(fork()).step()
    assert "reward" not in flow.seen["log_prob"].keys()


def test_a_join_has_the_columns_of_all_branches():
    joined = Flow(fork()).step().seen["join"]
    assert {"reward", "log_prob", "score"} <= set(joined.keys())
    assert joined["reward"].tolist() == [1.0, 2.0]


def test_a_filter_in_one_branch_leaves_its_sibling_alone():
    flow = Flow(fork(left=keep_even)).step()
    assert len(flow.seen["log_prob"]) == 2


def test_a_row_that_one_branch_filtered_out_is_not_in_the_join():
    joined = Flow(fork(left=keep_even)).step().seen["join"]
    assert texts(joined, "uid") == ["s0"]
    assert joined["log_prob"].tolist() == [0.0]


def test_a_join_takes_the_column_of_the_branch_that_changed_it():
    joined = Flow(fork(left=double_score, right=keep_even)).step().seen["join"]
    assert joined["score"].tolist() == [0.0]
    flow = Flow(fork(left=keep_even, right=double_score)).step()
    assert flow.seen["join"]["score"].tolist() == [0.0]


def test_nested_branches_keep_the_latest_version_of_a_column():
    pipeline = fork(left=double_score).add_node("again", double_score, ["reward"])
    pipeline.add_node("both", passes, ["again", "join"])
    flow = Flow(pipeline).step()
    assert flow.seen["both"]["score"].tolist() == [0.0, 4.0]


def test_undeclared_branches_that_change_one_column_are_refused_when_they_meet():
    with pytest.raises(ConfigError, match=r"'join'.*both wrote the column 'score'"):
        Flow(fork(left=double_score, right=double_score)).step()


def test_undeclared_branches_that_add_one_column_are_refused_before_they_meet():
    def add(batch):
        batch["mine"] = batch["score"]
        return batch

    flow = Flow(fork(left=add, right=lambda batch: add(batch)))
    with pytest.raises(ConfigError, match="both wrote the column 'mine'"):
        flow.step()
    assert "join" not in flow.order


def test_declared_branches_that_write_one_column_are_refused_when_the_graph_is_built():
    with pytest.raises(
        ConfigError, match="both wrote the column 'reward': 'reward' and 'log_prob'"
    ):
        fork(right=reward).build()


def test_every_entry_node_gets_the_prompts_and_they_are_drawn_once():
    pipeline = Pipeline("two").add_node("a", rollout).add_node("b", passes)
    flow = Flow(pipeline).step()
    assert flow.drawn == [0]
    assert flow.seen["b"].keys() == {"index"}


def test_an_entry_node_gets_the_prompts_of_its_agent_group():
    pipeline = Pipeline("agents").add_node("a", passes).add_node("b", passes, agent_group=1)
    flow = Flow(pipeline).step()
    assert flow.seen["a"]["index"].tolist() == [0, 1]
    assert flow.seen["b"]["index"].tolist() == [10, 11]


@pytest.mark.parametrize("same", [True, False])
def test_rows_of_two_agents_are_joined_only_if_their_prompts_are_the_same(same):
    pipeline = Pipeline("agents").add_node("a", rollout).add_node("b", hint, agent_group=1)
    flow = Flow(pipeline.add_node("join", passes, ["a", "b"]))
    flow.flow.draw = lambda group, more: TensorDict(
        {"index": torch.arange(2), "seed": torch.tensor([5, 7 if same else 7 + group])},
        batch_size=[2],
    )
    if same:
        assert flow.step().seen["join"]["hint"].tolist() == [1, 2]
        return
    with pytest.raises(ConfigError, match=r"column .seed. of their prompts.*data\.seed"):
        flow.step()


def test_a_load_node_gets_the_prompts_despite_its_dependencies():
    pipeline = Pipeline("load").add_node("a", rollout)
    pipeline.add_node("load", passes, ["a"], node_type=NodeType.DATA_LOAD)
    assert Flow(pipeline).step().seen["load"].keys() == {"index"}


def test_rows_of_a_load_node_may_meet_rows_like_those_that_it_waited_for():
    pipeline = Pipeline("load").add_node("a", rollout)
    pipeline.add_node("load", hint, ["a"], node_type=NodeType.DATA_LOAD)
    pipeline.add_node("b", rollout).add_node("join", passes, ["load", "b"])
    joined = Flow(pipeline).step().seen["join"]
    assert joined["hint"].tolist() == [1, 2] and texts(joined, "uid") == ["s0", "s1"]


def add_in_place(batch):
    batch["score"] += 1
    return batch


def test_a_tensor_changed_in_place_that_a_sibling_reads_is_refused():
    with pytest.raises(ConfigError, match=r"'reward' changed the column 'score' in place.*Assign"):
        Flow(fork(left=add_in_place)).step()
    with pytest.raises(ConfigError, match="'log_prob' changed the column 'score' in place"):
        Flow(fork(right=add_in_place)).step()


def test_a_tensor_that_no_other_node_reads_may_change_in_place():
    def copied_and_added(batch):
        return add_in_place(select_rows(batch, [0, 1]))

    pipeline = Pipeline("chain").add_node("rollout", rollout)
    pipeline.add_node("one", add_in_place, ["rollout"]).add_node("two", add_in_place, ["one"])
    assert Flow(pipeline.add_node("end", passes, ["two"])).step().seen["end"]["score"][1] == 3.0
    assert Flow(fork(left=copied_and_added)).step().seen["join"]["score"].tolist() == [1.0, 2.0]


def test_what_follows_an_undeclared_node_is_checked_once_that_has_run():
    pipeline = Pipeline("late").add_node("rollout", rollout)
    pipeline.add_node("user", double_score, ["rollout"]).add_node("log_prob", log_prob, ["user"])
    flow = Flow(pipeline.add_node("advantage", passes, ["log_prob"], requires=["reward"]))
    with pytest.raises(ConfigError, match=r"by node 'advantage'.*'reward'.*Known: .*log_prob"):
        flow.step()
    assert flow.order == ["rollout", "user"]


def test_an_undeclared_node_may_add_the_column_that_a_later_one_requires():
    def add_reward(batch):
        batch["reward"] = batch["score"]
        return batch

    pipeline = (
        Pipeline("late").add_node("rollout", rollout).add_node("user", add_reward, ["rollout"])
    )
    flow = Flow(pipeline.add_node("advantage", passes, ["user"], requires=["reward"])).step()
    assert flow.seen["advantage"]["reward"].tolist() == [0.0, 1.0]


def test_an_output_lives_until_its_last_reader_has_run():
    graph = fork().build()
    outputs, alive = {}, {}

    def call(node, batch, started):
        alive[node.node_id] = {name for name, output in outputs.items() if output() is not None}
        output = node.run(batch=batch, copy=shallow_copy)
        outputs[node.node_id] = weakref.ref(output.batch)
        return output

    prompts = TensorDict({"index": torch.arange(2)}, batch_size=[2])
    Dataflow(
        graph, call=call, begin=lambda node, batch: None, draw=lambda group, more: prompts
    ).run_step()
    assert alive["log_prob"] == {"rollout", "reward"}
    assert alive["join"] == set()


# Refill


class Sampling:
    """Asks once for as many prompts as it has rows."""

    def __init__(self):
        self.calls = 0

    def __call__(self, batch):
        self.calls += 1
        return NodeOutput(batch=batch, more_prompts=len(batch) if self.calls == 1 else 0)


def test_a_refill_runs_the_ancestors_of_the_asking_node_only():
    pipeline = Pipeline("refill").add_node("rollout", rollout).add_node("other", passes)
    pipeline.add_node("reward", reward, ["rollout"])
    pipeline.add_node(
        "sampling", Sampling(), ["reward"], node_role=NodeRole.DYNAMIC_SAMPLING, provides=[]
    )
    flow = Flow(pipeline).step()
    assert flow.drawn == [0, 2]
    assert flow.order == [
        *("rollout", "reward", "sampling"),
        *("rollout", "reward", "sampling"),
        "other",
    ]


def test_nodes_that_read_an_ancestor_later_get_the_rows_of_all_rounds():
    pipeline = Pipeline("refill").add_node("rollout", rollout)
    pipeline.add_node("log_prob", log_prob, ["rollout"])
    pipeline.add_node(
        "sampling", Sampling(), ["rollout"], node_role=NodeRole.DYNAMIC_SAMPLING, provides=[]
    )
    pipeline.add_node("join", passes, ["sampling", "log_prob"])
    flow = Flow(pipeline).step()
    assert texts(flow.seen["join"], "uid") == ["s0", "s1", "s10", "s11"]
    assert flow.seen["join"]["log_prob"].tolist() == [0.0, -1.0, -10.0, -11.0]


def test_a_refill_of_rows_that_a_sibling_has_read_is_refused():
    pipeline = Pipeline("refill").add_node("rollout", rollout)
    pipeline.add_node("log_prob", log_prob, ["rollout"])
    pipeline.add_node("greedy", Sampling(), ["rollout"], provides=[])
    with pytest.raises(ConfigError, match=r"after 'log_prob' has read 'rollout'.*DYNAMIC_SAMPLING"):
        Flow(pipeline).step()


def with_a_second_entry(**of_sampling):
    """rollout -> sampling and, on the prompts, hint -> join."""
    pipeline = Pipeline("refill").add_node("rollout", rollout).add_node("hint", hint)
    pipeline.add_node("sampling", Sampling(), ["rollout"], provides=[], **of_sampling)
    return pipeline.add_node("join", passes, ["sampling", "hint"])


def test_a_join_with_a_second_entry_node_has_the_rows_of_all_rounds():
    flow = Flow(with_a_second_entry(node_role=NodeRole.DYNAMIC_SAMPLING)).step()
    assert flow.seen["hint"]["index"].tolist() == [0, 1, 10, 11]
    assert flow.seen["join"]["hint"].tolist() == [1, 2, 11, 12]
    assert flow.order.count("hint") == 1


def test_a_refill_asked_by_a_node_on_the_prompts_reaches_the_joined_entry():
    pipeline = Pipeline("refill").add_node("hint", hint)
    pipeline.add_node(
        "sampling", Sampling(), node_role=NodeRole.DYNAMIC_SAMPLING, provides=[]
    ).add_node("join", passes, ["sampling", "hint"])
    assert Flow(pipeline).step().seen["join"]["hint"].tolist() == [1, 2, 11, 12]


def test_a_refill_after_a_second_entry_node_of_the_join_has_run_is_refused():
    with pytest.raises(ConfigError, match=r"after 'hint' has run.*drop.*DYNAMIC_SAMPLING"):
        Flow(with_a_second_entry()).step()


def test_a_refill_that_would_train_twice_is_refused():
    pipeline = Pipeline("refill").add_node("rollout", rollout)
    pipeline.add_node(
        "update", passes, ["rollout"], node_type=NodeType.MODEL_TRAIN, node_role=NodeRole.ACTOR
    )
    pipeline.add_node("sampling", Sampling(), ["update"], provides=[])
    with pytest.raises(ConfigError, match="'update' trains before it"):
        Flow(pipeline).step()


# States


def test_a_node_is_ready_when_its_dependencies_have_run():
    flow = Flow(fork())
    states = {}

    def call(node, batch, started):
        states[node.node_id] = {name: found.status for name, found in flow.graph.nodes.items()}
        return Flow._call(flow, node, batch)

    flow.flow.call = call
    flow.step().step()
    assert states["rollout"] == {
        "rollout": NodeStatus.READY,
        "reward": NodeStatus.PENDING,
        "log_prob": NodeStatus.PENDING,
        "join": NodeStatus.PENDING,
    }
    assert states["log_prob"]["reward"] is NodeStatus.COMPLETED
    assert states["log_prob"]["join"] is NodeStatus.PENDING
    assert flow.graph.nodes["join"].status is NodeStatus.COMPLETED


def test_a_skipped_node_passes_its_input_on():
    flow = Flow(fork())
    flow.graph.skip_node("reward", reason="unused")
    flow.step()
    assert flow.graph.nodes["reward"].status is NodeStatus.SKIPPED
    assert "reward" not in flow.seen["join"].keys()


# Overlap


def slow_reward_with(work):
    """A reward whose work `work` starts early."""

    @stage(NodeType.COMPUTE, NodeRole.REWARD, provides=["reward"], start=lambda *, batch: work)
    def slow_reward(batch, started=None):
        batch["reward"] = torch.full((len(batch),), started or -1.0)
        return batch

    return slow_reward


def done(result):
    work = Future()
    work.set_result(result)
    return work


def test_work_that_can_begin_early_runs_beside_independent_nodes():
    flow = Flow(fork(left=slow_reward_with(done(5.0)))).step()
    assert flow.order == ["rollout", "begin reward", "log_prob", "reward", "join"]
    assert flow.seen["join"]["reward"].tolist() == [5.0, 5.0]


def test_work_that_cannot_begin_early_is_done_at_the_call():
    flow = Flow(fork(left=slow_reward_with(None))).step()
    assert flow.seen["join"]["reward"].tolist() == [-1.0, -1.0]


def test_no_work_begins_early_if_no_node_runs_beside_it():
    pipeline = Pipeline("chain").add_node("rollout", rollout)
    pipeline.add_node("reward", slow_reward_with(done(5.0)), ["rollout"])
    pipeline.add_node("after", passes, ["reward"])
    assert Flow(pipeline).step().order == ["rollout", "reward", "after"]


def test_a_failing_node_waits_for_work_that_has_begun():
    work, ended = Future(), []

    def fail(batch):
        Timer(0.05, lambda: (ended.append(True), work.set_result(1.0))).start()
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        Flow(fork(left=slow_reward_with(work), right=fail)).step()
    assert ended


def test_the_error_of_begun_work_is_raised_by_its_node():
    work = Future()
    work.set_exception(ValueError("unscorable"))
    flow = Flow(fork(left=slow_reward_with(work)))
    with pytest.raises(ValueError, match="unscorable"):
        flow.step()
    assert flow.order[-1] == "log_prob"
