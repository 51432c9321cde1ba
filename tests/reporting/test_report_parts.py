"""Parts of report.html: pairs of episodes, groups of rollouts, graph, configuration, live page."""

from pathlib import Path

from pipelines.grpo import grpo_pipeline
from siirl.execution.dag import Node, NodeType, TaskGraph
from siirl.params.parser import parse
from siirl.params.user_settings import UserSettings
from siirl.reporting.before_after import pairs
from siirl.reporting.config_difference import between, from_defaults
from siirl.reporting.graph_drawing import (
    draw_graph,
    graph_rows,
    read_graph,
    read_graph_id,
    write_graph,
)
from siirl.reporting.metric_writers import MetricWriters, RunDescription
from siirl.reporting.origin import read_given
from siirl.reporting.report_page import LiveReport, write_report
from siirl.reporting.rollout_groups import groups, messages
from siirl.reporting.run_folder import run_folder


def recorded(step: int, episode: str, success: bool | None, **more: object) -> dict:
    row = {"kind": "val", "step": step, "uid": f"val-{step:06d}-{episode}", "task": "t", "seed": 1}
    return row | {"success": success, "reward": None if success is None else float(success)} | more


def test_an_episode_is_paired_with_itself_and_lost_ones_come_first() -> None:
    rows = [
        *(recorded(0, "a", False), recorded(5, "a", True)),
        *(recorded(0, "b", True), recorded(5, "b", False)),
        *(recorded(0, "c", False), recorded(5, "c", False)),
        recorded(0, "d", True),
    ]
    found = [(pair.after["uid"], pair.change) for pair in pairs(rows, most=9)]
    assert found == [
        ("val-000005-b", "lost"),
        ("val-000005-c", "still fails"),
        ("val-000005-a", "learnt"),
    ]


def test_episodes_of_other_seeds_are_not_a_pair() -> None:
    assert pairs([recorded(0, "a", True), recorded(5, "a", True, seed=2)], most=9) == []


def test_rollouts_of_a_prompt_are_a_group_with_its_best_first() -> None:
    rows = [
        recorded(1, "a", False, group=1),
        recorded(1, "b", True, group=1),
        recorded(1, "c", False, group=2),
    ]
    mixed, failed = groups(rows, most=9)
    assert [(name, row["uid"]) for name, row in mixed.extremes] == [
        ("best", "val-000001-b"),
        ("worst", "val-000001-a"),
    ]
    assert (mixed.successes, mixed.mean_reward, failed.outcome) == (1, 0.5, "fail")


def test_a_tool_call_reads_as_a_call() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>'
    turns = [{"role": "assistant", "content": call}, {"role": "tool", "content": "3"}]
    assert messages({"turns": turns}) == [("assistant", "add(a=1, b='x')"), ("tool", "3")]


def branched() -> TaskGraph:
    graph = TaskGraph("two rewards")
    for name, after in {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}.items():
        graph.add_node(Node(name, NodeType.COMPUTE, dependencies=after))
    graph.skip_node("c", reason="not asked for")
    return graph


def test_the_graph_of_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_graph(branched(), tmp_path)
    assert read_graph(tmp_path) == graph_rows(branched())
    assert read_graph_id(tmp_path) == "two rewards"


def test_a_drawing_has_a_box_a_node_and_an_arrow_a_dependency() -> None:
    drawing = draw_graph(graph_rows(branched()))
    assert (drawing.count("<rect"), drawing.count('class="edge"')) == (4, 4)
    assert drawing.count('class="node skipped"') == 1


def test_the_graph_of_separate_groups_is_written_as_it_is_placed(tmp_path: Path) -> None:
    write_graph(grpo_pipeline(), tmp_path, groups=("rollout", "train"))
    rows = read_graph(tmp_path)
    placed = [(row["id"], row["group"], row["after"]) for row in rows[:4]]
    assert placed == [
        ("rollout_actor", "rollout", []),
        ("put_rollout_actor", "rollout", ["rollout_actor"]),
        ("get_rollout_actor", "train", ["put_rollout_actor"]),
        ("function_reward", "train", ["get_rollout_actor"]),
    ]
    assert {row["group"] for row in rows[4:]} == {"train"}
    drawing = draw_graph(rows)
    assert drawing.count('class="edge"') == len(rows) - 1
    assert "put_rollout_actor\nsiirl.dag_worker.stages:put_to_group\ngroup rollout" in drawing


def test_a_damaged_graph_is_left_out(tmp_path: Path) -> None:
    for damaged in ('[{"id": 3}]', '{"graph": 3, "nodes": [{"id": 3}]}', "{"):
        (tmp_path / "graph.json").write_text(damaged)
        assert (read_graph(tmp_path), read_graph_id(tmp_path)) == ([], None)


def test_a_changed_key_is_shown_with_its_default(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("trainer:\n  seed: 7\n  save_freq: -1\nmine: {a: 1}\n")
    shown = {
        found.key: (found.value, found.default) for found in from_defaults(file, UserSettings())
    }
    assert shown["trainer.seed"] == ("7", "0")
    assert shown["mine.a"] == ("1", "")


def test_keys_that_the_user_set_come_first_with_the_value_of_the_groups(tmp_path: Path) -> None:
    """dr_grpo where pipeline=grpo says grpo; clip_ratio_high=0.28 is what the pipeline says."""
    own = tmp_path / "own.yaml"
    own.write_text("trainer: {seed: 7}")
    words = ["pipeline=grpo", "env=math", "algorithm.adv_estimator=dr_grpo"]
    words += [f"trainer.output_dir={tmp_path}", "actor_rollout_ref.actor.clip_ratio_high=0.28"]
    parsed = parse(words, config_file=own)
    with run_folder(parsed.config, needed_bytes=0, given=parsed.given) as folder:
        given = read_given(folder)
    assert given.groups == {"pipeline": "grpo", "env": "math"}
    rows = from_defaults(folder / "config.yaml", given)
    first = {row.key: (row.value, row.default, row.source) for row in rows[:3]}
    assert first["algorithm.adv_estimator"] == ("dr_grpo", "grpo", "command line")
    assert first["trainer.seed"] == ("7", "0", str(own))
    assert "trainer.output_dir" in first
    of_groups = {row.key for row in rows[3:] if not row.source}
    assert len(of_groups) == len(rows) - 3
    assert {"actor_rollout_ref.actor.clip_ratio_high", "env.name"} <= of_groups


def test_keys_that_only_the_groups_set_are_folded_below_the_users(tmp_path: Path) -> None:
    """A text run is not compared with the defaults of the robots' jobs."""
    words = ["pipeline=grpo", "env=math", "trainer.seed=7", f"trainer.output_dir={tmp_path}"]
    parsed = parse(words)
    with (
        run_folder(parsed.config, needed_bytes=0, given=parsed.given) as folder,
        MetricWriters([], RunDescription(folder, total_steps=1)) as writers,
    ):
        writers.write(step=1, metrics={"reward/mean_score": 1.0})
    page = write_report(folder).read_text()
    own, folded = page.partition('id="config"')[2].split(" keys that the groups set</summary>")
    assert "trainer.seed" in own and "env.name" not in own
    assert "Defaults are those of the chosen groups: pipeline=grpo env=math." in own
    assert "<code>env.name</code>" in folded and "trainer.seed" not in folded.split("</details>")[0]


def test_runs_are_compared_by_the_keys_that_differ(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.yaml" for name in ("one", "two")}
    files["one"].write_text("trainer: {seed: 0, save_freq: 5}")
    files["two"].write_text("trainer: {seed: 1, save_freq: 5}")
    assert between(files) == [("trainer.seed", ["0", "1"])]


def test_a_live_page_reloads_and_takes_two_percent_of_the_time(tmp_path: Path) -> None:
    times = iter([0.0, 0.0, 1.0, 50.9, 51.0, 51.5])  # made, begin, end, too early, begin, end
    with MetricWriters([], RunDescription(tmp_path, total_steps=3)) as writers:
        report = LiveReport(tmp_path, clock=lambda: next(times))
        written = []
        for step in (1, 2, 3):
            writers.write(step=step, metrics={"reward/mean_score": float(step)})
            report.after_step()
            written.append(f"step {step}" in report.file.read_text())
        assert written == [True, False, True]
        assert 'data-live="10"' in report.file.read_text()
    report.finish()
    assert "data-live=" not in report.file.read_text()


def test_a_run_without_a_step_leaves_no_page(tmp_path: Path) -> None:
    report = LiveReport(tmp_path)
    report.finish()
    assert not report.file.exists()
