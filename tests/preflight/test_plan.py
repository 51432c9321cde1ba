"""The plan: numbers that can be checked by hand."""

import dataclasses
import json
from pathlib import Path

import pytest

from siirl.execution.dag import NodeRole, NodeType, Pipeline
from siirl.execution.dag.job_graph import skip_unused
from siirl.params import sizes
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import needs_old_log_probs
from siirl.preflight.plan_text import render
from tests.preflight.camera_spec import SPEC
from tests.preflight.plans import JOB, graph, one_line, plan_of


def test_prompts_times_group_size_are_the_trajectories() -> None:
    plan = plan_of()
    assert (plan.prompts, plan.group_size, plan.trajectories) == (12, 8, 96)


def test_an_update_is_cut_into_mini_batches_and_micro_batches() -> None:
    plan = plan_of()
    assert (plan.update.mini_batches, plan.optimiser_steps) == (4, 4)
    assert plan.update.trajectories_per_mini_batch == 24
    assert plan.update.micro_batches == 3  # 24 trajectories, 10 at a time


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "policy tiny_vla, new weights tasks"),
        (["actor_rollout_ref.model.policy=control_policy"], "policy control_policy, new weights"),
        (["model=tiny_vla", "trainer=mujoco_control"], "policy tiny_vla, new weights tasks"),
        (
            ["actor_rollout_ref.model.options={bins: 8}"],
            "policy tiny_vla {bins: 8}, new weights tasks",
        ),
        (["actor_rollout_ref.model.lora.rank=8"], "policy tiny_vla, new weights, LoRA of rank 8"),
        (
            ["actor_rollout_ref.model.path=assets/tiny_vla"],
            "policy tiny_vla, weights of assets/tiny_vla tasks",
        ),
        (
            ["actor_rollout_ref.model.path=assets/tiny_vla", "trainer.resume=outputs/run"],
            "policy tiny_vla, weights of outputs/run tasks",
        ),
        (["trainer.resume=outputs/run"], "policy tiny_vla, weights of outputs/run tasks"),
    ],
)
def test_the_plan_names_the_policy_and_its_weights(words: list[str], told: str) -> None:
    assert told in one_line(render(plan_of(words)))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["actor_rollout_ref.actor.target_kl=0.02"],
            "policy rate 0.0002, cosine_with_warmup, adjusted to target_kl=0.02 loss",
        ),
        (
            ["actor_rollout_ref.actor.target_kl=null", "actor_rollout_ref.actor.optim.lr=3e-5"],
            "policy rate 3e-05, cosine_with_warmup loss",
        ),
    ],
)
def test_the_plan_names_the_learning_rate_and_what_changes_it(words: list[str], told: str) -> None:
    assert told in one_line(render(plan_of(words)))


def test_each_agent_of_an_episode_makes_a_trajectory() -> None:
    plan = plan_of(spec=dataclasses.replace(SPEC, num_agents=2))
    assert (plan.trajectories, plan.update.trajectories_per_mini_batch) == (192, 48)
    assert plan.update.micro_batches == 5
    assert "12 prompts x 8 rollouts x 2 agents = 192 trajectories" in one_line(render(plan))


def test_two_ranks_share_a_mini_batch() -> None:
    # 12 on each rank, 10 at a time
    assert plan_of(["trainer.n_gpus_per_node=2"]).update.micro_batches == 2


def test_ranks_are_distinguished_by_machine_and_share_its_cores() -> None:
    words = [
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=3",
        "cluster.address=10.0.0.1:6379",
        "env.num_servers=6",
    ]
    assert "6 on 2 machines (Ray actors, cluster=10.0.0.1:6379)" in one_line(render(plan_of(words)))
    config = parse_config([*JOB, *words])
    assert [sizes.threads_of_rank(config.trainer, cores=cores) for cores in (1, 6, 8)] == [1, 2, 2]


def test_epochs_repeat_the_optimiser_steps() -> None:
    assert plan_of(["actor_rollout_ref.actor.ppo_epochs=2"]).optimiser_steps == 8


@pytest.mark.parametrize(
    ("overrides", "evaluations"),
    [
        ([], 5),  # before, after steps 5, 10, 15, and at the end
        (["trainer.val_before_train=false"], 4),
        (["trainer.test_freq=-1"], 2),
        (["trainer.val_episodes=0"], 0),
        (["trainer.total_steps=1"], 2),
    ],
)
def test_evaluations_are_counted(overrides: list[str], evaluations: int) -> None:
    assert plan_of(overrides).length.evaluations == evaluations


def test_an_evaluation_has_episodes_of_every_task() -> None:
    assert plan_of().length.val_episodes == 60
    assert plan_of(["trainer.val_samples=4"]).length.val_episodes == 240


def start_of(tasks: object, folder: Path, *overrides: str) -> str | None:
    """The plan of a run on tasks a and b with weights whose config.json names `tasks`."""
    (folder / "config.json").write_text(json.dumps({"notes": {"tasks": tasks}}))
    return plan_of([f"actor_rollout_ref.model.path={folder}", *overrides]).start


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (
            ["c", "d"],
            "was trained on c, d, on none of this run's tasks: expect almost no success there",
        ),
        (["a", "c"], "was trained on a, c, not on b: expect almost no success there"),
    ],
)
def test_tasks_that_the_start_has_not_learnt_are_named(
    tmp_path: Path, known: list[str], told: str
) -> None:
    said = start_of(known, tmp_path)
    assert said is not None
    assert f"WARNING: {tmp_path} {told}" in said
    assert f"start {said}" in one_line(render(dataclasses.replace(plan_of(), start=said)))


def test_no_warning_for_weights_of_all_tasks_or_of_unknown_tasks_or_for_a_resumed_run(
    tmp_path: Path,
) -> None:
    assert [start_of(tasks, tmp_path) for tasks in (["b", "a"], [], None, "a")] == [None] * 4
    assert start_of(["c"], tmp_path, f"trainer.resume={tmp_path}") is None
    assert "  start  " not in render(plan_of())


def test_the_plan_fits_80_columns_with_a_hanging_indent() -> None:
    lines = render(plan_of()).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith(" " * 16)]


def test_the_plan_fits_a_narrow_terminal() -> None:
    lines = render(plan_of(), columns=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert [line for line in lines if line.startswith(" " * 16)]


def test_a_text_without_room_beside_its_topic_stands_below_it() -> None:
    lines = render(plan_of(), columns=44).splitlines()
    assert max(map(len, lines)) <= 44
    at = lines.index("  tasks")
    assert lines[at + 1] == "    metaworld: a, b"


def test_every_number_is_in_the_text() -> None:
    text = one_line(render(plan_of()))
    for part in (
        "rollout -> old -> reference -> update",
        "1 (Ray actors, cluster=ray)",
        "metaworld: a, b",
        "2 servers x 4 = 8",
        "12 prompts x 8 rollouts = 96 trajectories",
        "4 mini-batches of 24 trajectories = 4 optimiser steps",
        "3 micro-batches of at most 10",
        "vanilla, token-mean",
        "20 steps: 1920 trajectories, 80 optimiser steps; 5 evaluations of 60 episodes",
        "estimated",
    ):
        assert part in text


def test_the_plan_notes_that_environments_of_one_process_take_turns() -> None:
    local = dataclasses.replace(plan_of(), cluster="local")
    assert "2 servers x 4 = 8, which take turns in that one process" in one_line(render(local))
    alone = dataclasses.replace(local, num_servers=1, envs_per_server=1)
    assert "1 server x 1 = 1 a step" in one_line(render(alone))


def test_of_many_tasks_ten_are_named_and_all_are_counted() -> None:
    many = dataclasses.replace(SPEC, tasks=tuple(f"t{number}" for number in range(90)))
    assert (
        "metaworld: t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 80 more, 90 tasks in all "
        in one_line(render(plan_of(spec=many)))
    )


def test_a_run_without_steps_names_what_ends_it() -> None:
    assert "steps until 2 minutes of training;" in render(
        plan_of(["trainer.total_steps=null", "trainer.max_minutes=2"])
    )


def test_files_may_hold_out_fewer_questions_than_requested() -> None:
    plan = plan_of()
    length = dataclasses.replace(plan.length, file_epochs=3)
    text = one_line(render(dataclasses.replace(plan, length=length)))
    assert "at most 3 passes over the files" in text
    assert "5 evaluations of at most 60 episodes" in text


# Unused forward passes


def test_a_reference_is_needed_where_a_kl_has_a_weight() -> None:
    def needs(*overrides: str) -> bool:
        config = parse_config([*JOB, *overrides])
        return sizes.needs_reference(config.actor_rollout_ref.actor, config.algorithm)

    assert not needs()
    assert needs("actor_rollout_ref.actor.use_kl_loss=true")
    assert not needs(
        "actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0"
    )
    assert needs("algorithm.use_kl_in_reward=true")
    assert not needs("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0")


def test_old_log_probs_are_needed_when_the_policy_has_moved() -> None:
    def needed(*overrides: str) -> bool:
        config = parse_config([*JOB, *overrides])
        return needs_old_log_probs(config.actor_rollout_ref.actor, config.algorithm)

    assert not needed()
    for reason in (
        "algorithm.use_kl_in_reward=true",
        "actor_rollout_ref.actor.importance.level=token",
        "actor_rollout_ref.actor.loss=decoupled",
    ):
        assert needed(reason)


def test_a_skipped_node_is_reported_with_its_reason() -> None:
    job_graph = graph()
    skip_unused(job_graph, needs_reference=False, needs_old_log_probs=False)
    plan = plan_of(job_graph=job_graph)
    assert plan.pipeline.nodes == ("rollout", "update")
    assert [node for node, _ in plan.pipeline.skipped] == ["old", "reference"]
    assert "skipped" in one_line(render(plan))
    assert (
        "reference: no KL has a weight (actor_rollout_ref.actor.use_kl_loss, "
        "algorithm.use_kl_in_reward)" in one_line(render(plan))
    )


def test_a_needed_node_is_not_skipped() -> None:
    job_graph = graph()
    skip_unused(job_graph, needs_reference=True, needs_old_log_probs=True)
    assert plan_of(job_graph=job_graph).pipeline.skipped == ()


def test_a_kl_without_a_node_for_the_reference_is_refused() -> None:
    job_graph = graph()
    job_graph.remove_node("reference")
    with pytest.raises(ValueError, match="no node with the role REFERENCE"):
        skip_unused(job_graph, needs_reference=True, needs_old_log_probs=True)


def test_branches_are_drawn_as_branches() -> None:
    pipeline = Pipeline("own").add_node("rollout", None)
    pipeline.add_node("reward", None, ["rollout"]).add_node("advantages", None, ["reward"])
    pipeline.add_node("reference", None, ["rollout"])
    pipeline.add_node("update", None, ["advantages", "reference"]).add_node("log", None, ["update"])
    lines = [
        line.split(maxsplit=1) for line in render(plan_of(job_graph=pipeline.build())).splitlines()
    ]
    assert [part for part in lines if part[0] in ("branch", "join")] == [
        ["branch", "rollout -> reward -> advantages"],
        ["branch", "rollout -> reference"],
        ["join", "advantages + reference -> update -> log"],
    ]


def test_a_graph_that_trains_nothing_says_so_and_promises_no_optimiser_steps() -> None:
    pipeline = Pipeline("own").add_node(
        "rollout", None, node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT
    )
    plan = plan_of(job_graph=pipeline.build())
    text = one_line(render(plan))
    assert plan.optimiser_steps == 0
    assert render(plan).splitlines()[2].split()[:2] == ["trains", "nothing:"]
    assert "no node of this graph trains a model" in text
    assert "optimiser step" not in text
    assert "vanilla" not in text


def test_names_of_tasks_cannot_command_the_terminal() -> None:
    hostile = dataclasses.replace(SPEC, tasks=("push\x1b[2J\nmemory 0",))
    (line,) = [line for line in render(plan_of(spec=hostile)).splitlines() if "push" in line]
    assert line.endswith("push\\x1b[2J\\nmemory 0")
