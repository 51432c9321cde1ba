"""Memory, disk and time in the plan, and what a resumed run still needs of them."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from envs.base import SimulatorMemory
from envs.libero.libero_env import MEMORY, STAND_IN_MEMORY
from siirl.params.parser import parse_config
from siirl.params.sizes import GIB
from siirl.preflight.duration import PROBE_S, estimated_minutes, measured_speed
from siirl.preflight.machine import Gpu
from siirl.preflight.plan import Machine, ResumePoint
from siirl.preflight.plan_text import render
from siirl.preflight.rank_table import RankMemory
from tests.preflight.camera_spec import QUESTIONS, SPEC
from tests.preflight.plans import JOB, NO_VIDEOS, one_line, plan_of


def test_memory_counts_simulators_by_server_and_task() -> None:
    few, many = plan_of(["env.num_servers=2"]), plan_of(["env.num_servers=4"])
    assert (
        dict(many.needs.memory_parts)["environments"]
        == 2 * dict(few.needs.memory_parts)["environments"]
    )


@pytest.mark.parametrize(
    ("memory", "overrides", "expected"),
    [
        (
            STAND_IN_MEMORY,
            [],
            2 * (300e6 + 2 * 50e6) + 16 * 50e6,
        ),  # 2 servers, 8 environments of 2 tasks
        (MEMORY, [], 2 * (300e6 + 2 * 700e6) + 16 * 150e6),
        (
            MEMORY,
            ["env.kwargs={kept_simulators: 1}"],
            2 * (300e6 + 2 * 700e6) + 8 * 150e6,
        ),  # on a server both tasks may be drawn
        (
            MEMORY,
            ["env.kwargs={kept_simulators: 1}", "env.num_servers=8", "env.envs_per_server=1"],
            8 * (300e6 + 700e6 + 150e6),
        ),
    ],
)
def test_memory_of_simulators_depends_on_their_assets_and_on_how_many_are_kept(
    memory: SimulatorMemory, overrides: list[str], expected: float
) -> None:
    plan = plan_of(overrides, spec=dataclasses.replace(SPEC, memory=memory))
    assert dict(plan.needs.memory_parts)["environments"] == pytest.approx(expected)


def test_memory_of_adapters_includes_the_frozen_policy_and_a_reference_adds_none() -> None:
    """4 bytes per frozen weight, 16 with gradient and moments, 4 for a separate reference."""

    def bytes_of(*overrides: str) -> float:
        parts = dict(plan_of(["trainer.async_save=false", *overrides]).needs.memory_parts)
        names = ("weights", "Adam", "gradients", "reference")
        return sum(parts.get(name, 0.0) for name in names) / 2_200_000

    adapters, kl = "actor_rollout_ref.model.lora.rank=8", "actor_rollout_ref.actor.use_kl_loss=true"
    assert [bytes_of(), bytes_of(kl), bytes_of(adapters), bytes_of(adapters, kl)] == [16, 20, 4, 4]
    assert bytes_of(adapters, kl, "actor_rollout_ref.ref.path=other") == 8
    assert plan_of(NO_VIDEOS).needs.disk_bytes > plan_of([*NO_VIDEOS, adapters]).needs.disk_bytes


def test_disk_counts_the_checkpoints_that_stay_and_the_one_being_written() -> None:
    """New weights of 2.2 million parameters at 16 bytes (two copies, two moments): four checkpoints
    however long the run, two for one step and its end.
    """
    short, long, longer = (
        plan_of(["trainer.save_freq=1", f"trainer.total_steps={steps}", *NO_VIDEOS])
        for steps in (1, 10, 10_000)
    )
    assert long.needs.disk_bytes == longer.needs.disk_bytes
    assert long.needs.disk_bytes - short.needs.disk_bytes == 2 * 16 * 2_200_000


@pytest.mark.parametrize(("ranks", "copies"), [(1, 1), (2, 2)])
def test_disk_counts_frozen_weights_once_a_run(ranks: int, copies: int) -> None:
    """4 bytes of each, however many checkpoints stay; ranks that join their parts need as much
    again.
    """
    words = (*NO_VIDEOS, "actor_rollout_ref.model.lora.rank=2", f"trainer.n_gpus_per_node={ranks}")
    short, long = (
        plan_of([*words, "trainer.save_freq=1", f"trainer.total_steps={steps}"]).needs.disk_bytes
        for steps in (1, 10)
    )
    assert long == short == 20e6 + copies * 4 * 2_200_000


def test_a_need_beyond_the_free_memory_is_reported() -> None:
    assert "WARNING" not in render(plan_of())
    assert "lower env.num_servers" in one_line(
        render(dataclasses.replace(plan_of(), machine=Machine(free_memory_bytes=1e9, cores=2)))
    )


def test_the_memory_of_other_machines_is_not_compared_with_this_ones() -> None:
    here = Machine(free_memory_bytes=1e9, cores=2)
    plan = dataclasses.replace(plan_of(), machine=here, cluster="10.0.0.1:6379")
    assert "WARNING" not in render(plan)


def test_disk_counts_the_videos_of_no_more_steps_than_there_is_time_for() -> None:
    """Two videos of 300 kB per step; six minutes have at most 360 steps, for any allowed number."""
    some, many = (
        plan_of(
            ["trainer.record_val_episodes=0", "trainer.max_minutes=6", f"trainer.total_steps={n}"]
        )
        for n in (360, 10**9)
    )
    assert some.needs.disk_bytes == many.needs.disk_bytes
    one_less = plan_of(
        ["trainer.record_val_episodes=0", "trainer.max_minutes=6", "trainer.total_steps=359"]
    )
    assert some.needs.disk_bytes - one_less.needs.disk_bytes == pytest.approx(2 * 300e3)


def test_disk_counts_no_more_videos_than_there_are_episodes() -> None:
    """96 trajectories of a step, and 30 held-out episodes of each of two tasks: a large number
    means all of them.
    """
    for key, episodes in (("trainer.record_episodes", 96), ("trainer.record_val_episodes", 60)):
        assert (
            plan_of([f"{key}={episodes}"]).needs.disk_bytes
            == plan_of([f"{key}=1000"]).needs.disk_bytes
            > plan_of([f"{key}={episodes - 1}"]).needs.disk_bytes
        )


def test_disk_counts_no_videos_of_text() -> None:
    short, long = (
        plan_of(["env=math", "pipeline=grpo", f"trainer.total_steps={steps}"], spec=QUESTIONS)
        for steps in (1000, 100_000)
    )
    assert short.needs.disk_bytes == long.needs.disk_bytes


def test_time_is_bounded_by_max_minutes_and_not_made_up_for_other_environments() -> None:
    long = plan_of(
        ["trainer.total_steps=100000", "trainer.max_minutes=6", "trainer.val_episodes=0"]
    )
    assert long.needs.minutes == pytest.approx(6.0)
    cart_pole = one_line(render(plan_of(["env=gymnasium", "env.id=CartPole-v1"])))
    assert "time the estimate is printed after the first step" in cart_pole
    bounded = plan_of(["env=gymnasium", "env.id=CartPole-v1", "trainer.max_minutes=6"])
    assert "time at most 6 minutes of training; the estimate" in one_line(render(bounded))


def test_time_of_small_policies_is_by_environment_and_not_made_up_for_large_ones(
    tmp_path: Path,
) -> None:
    """An episode of LIBERO takes four times as long as one of Meta-World with as many steps, and
    its share of a limit is lower.
    """
    meta_world, libero = (
        plan_of(words).needs.minutes
        for words in ([], ["env=libero", "actor_rollout_ref.model.path=null"])
    )
    assert meta_world is not None and libero is not None and 2 < libero / meta_world < 5
    large = tmp_path / "large"
    large.mkdir()
    save_file({"weight": np.zeros(6_000_000, np.float16)}, large / "model.safetensors")
    plan = plan_of([f"actor_rollout_ref.model.path={large}"])
    assert "the estimate is printed after the first step" in one_line(render(plan))


def test_time_of_answers_to_prompts_of_files_is_not_made_up() -> None:
    """They may be twenty times as long as those to the generated sums that were measured."""
    sums, files = (
        plan_of(["env=math", "pipeline=grpo", *words], spec=dataclasses.replace(SPEC, name="math"))
        for words in ([], ["data.train_files=[train.jsonl]"])
    )
    assert sums.needs.minutes is not None
    assert files.needs.minutes is None


def test_a_resumed_run_counts_and_estimates_the_steps_that_are_left() -> None:
    words = ["env=metaworld", "trainer.val_episodes=0", "trainer.save_freq=1"]
    whole, rest = plan_of(words), plan_of(words, begins=ResumePoint("after step 12", step=12))
    assert whole.needs.minutes is not None
    assert rest.needs.minutes == pytest.approx(whole.needs.minutes * 8 / 20)
    assert rest.needs.disk_bytes < whole.needs.disk_bytes
    # 8 steps of 96 trajectories and 4 optimiser steps
    text = one_line(render(rest))
    assert "length 8 of 20 steps: 768 trajectories, 32 optimiser steps" in text


@pytest.mark.parametrize(("done", "steps"), [(0, 15), (3, 15), (12, 8)])
def test_the_critics_warm_up_updates_no_policy(done: int, steps: int) -> None:
    words = ["env=metaworld", "trainer.critic_warmup=5"]
    text = one_line(render(plan_of(words, begins=ResumePoint("", step=done))))
    assert f"trajectories, {steps * 4} optimiser steps" in text


def test_the_evaluations_of_a_resumed_run_are_those_after_its_checkpoint() -> None:
    def left(step: int) -> int | None:
        return plan_of(begins=ResumePoint("", step=step)).length.evaluations

    # before the first step, after steps 5, 10 and 15, and after the last
    assert [left(step) for step in (0, 4, 5, 19, 20)] == [5, 4, 3, 1, 1]


def test_a_slower_machine_takes_longer() -> None:
    config, spec = parse_config([*JOB, "trainer.max_minutes=null"]), SPEC
    fast, slow = (
        estimated_minutes(config, spec, cores=2, val_episodes=10, speed=speed)
        for speed in (1.0, 0.5)
    )
    assert fast is not None and slow == pytest.approx(2 * fast)


def test_the_speed_is_the_probe_of_the_measured_machine_over_that_of_this_one() -> None:
    slow = measured_speed(lambda: time.sleep(10 * PROBE_S))
    assert 0 < slow <= 0.1


def test_the_plan_lists_what_a_gpu_holds_where_its_memory_is_known() -> None:
    assert "a GPU" not in render(plan_of())
    table = RankMemory(
        held=(("weights", 3 * GIB),), phases=(("rollout", ()), ("update", (("gradients", GIB),)))
    )
    plan = plan_of()
    plan = dataclasses.replace(
        plan,
        needs=dataclasses.replace(plan.needs, rank_memory=table),
        machine=dataclasses.replace(plan.machine, gpu=Gpu(8.0 * GIB)),
    )
    told = one_line(render(plan))
    assert "a GPU about 4.0 GiB of 8.0 GiB in its update, estimated; throughout weights" in told
    assert "update: gradients 1.0 GiB" in told


def test_the_plan_says_that_the_memory_of_a_gpu_is_not_computed() -> None:
    plan = plan_of()
    plan = dataclasses.replace(plan, machine=dataclasses.replace(plan.machine, gpu=Gpu(8.0 * GIB)))
    assert "a GPU its memory is not computed: that needs a folder" in one_line(render(plan))
