"""Jobs that do not fit their environment: keys of the other domain, missing images or success."""

from dataclasses import replace

import pytest

from envs.base import EnvSpec
from tests.preflight.own_environments import TEXT, environment, spec

SERVER_KEY = "actor_rollout_ref.rollout.server"
SERVER = ["env=math", "rollout=server", f"{SERVER_KEY}.urls=['http://127.0.0.1:8100']"]


@pytest.mark.parametrize("overrides", [["pipeline=grpo", "reward=success"], [], ["reward=oracle"]])
def test_the_shipped_environment_fits_its_jobs(overrides: list[str]) -> None:
    assert environment(spec(), *overrides) == []


@pytest.mark.parametrize(
    "override",
    [
        "data.train_files=[a.parquet]",
        "data.val_files=[a.parquet]",
        "data.max_prompt_length=7",
        "data.max_response_length=7",
        "data.num_loader_workers=2",
        "actor_rollout_ref.model.trust_remote_code=true",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "trainer.total_epochs=2",
        "reward_model.path=x",
        "custom_reward_function.path=x",
        "custom_reward_function.name=x",
    ],
)
def test_a_key_that_only_text_reads_is_refused_for_a_robot(override: str) -> None:
    found = environment(spec(), "env=metaworld", override)
    assert len(found) == 1
    assert found[0].startswith(override.split("=")[0])
    assert "is read by text jobs" in found[0]


def test_a_key_that_only_text_reads_is_accepted_for_text() -> None:
    assert environment(TEXT, "env=math", "pipeline=grpo", "data.max_response_length=7") == []


@pytest.mark.parametrize(
    ("env", "overrides", "expected"),
    [
        (
            TEXT,
            ["env=math", "pipeline=embodied_srpo"],
            "pipeline=embodied_srpo rewards episode videos, but env=math is text",
        ),
        (
            TEXT,
            ["env=math", "pipeline=grpo", "reward=srpo"],
            "reward.name=srpo scores episodes of robots, but env=math is text",
        ),
        (
            TEXT,
            ["env=math", "pipeline=grpo", "model=tiny_vla"],
            "model.policy=tiny_vla acts on images, but env=math is text",
        ),
        (
            TEXT,
            ["env=math", "pipeline=grpo", "model=causal_lm"],
            "model.path=null names no language model",
        ),
        (
            TEXT,
            ["env=math", "pipeline=grpo", "rollout=embodied"],
            "rollout.name=embodied does not generate text",
        ),
        (
            TEXT,
            ["env=math", "actor_rollout_ref.actor.micro_batch_tokens=99"],
            "the longest row does not fit into a micro-batch",
        ),
        (
            TEXT,
            ["env=math", "actor_rollout_ref.rollout.workflow=no_such:Thing"],
            "there is no module 'no_such'",
        ),
        (TEXT, ["env=math", "actor_rollout_ref.rollout.stop=['']"], "stop has an empty string"),
        (
            TEXT,
            ["env=math", "actor_rollout_ref.rollout.mode=async"],
            "mode=async rolls out during training",
        ),
        (
            TEXT,
            ["env=math", "rollout=vllm", "trainer.n_gpus_per_node=2"],
            "vLLM runs in the rank's process unless actor_rollout_ref.rollout.mode=async, but "
            "training has a process group there: set that.",
        ),
        (
            TEXT,
            ["env=math", "rollout=vllm", "trainer.force_process_group=true"],
            "training has a process group there: set that.",
        ),
        (
            TEXT,
            [
                "env=math",
                "rollout=vllm",
                "trainer.n_gpus_per_node=2",
                "trainer.deterministic=true",
            ],
            "with trainer.deterministic=true use rollout=hf, or separate rollout ranks",
        ),
        (
            TEXT,
            ["env=math", "actor_rollout_ref.rollout.mode=async", "trainer.deterministic=true"],
            "batches by arrival time",
        ),
        (
            TEXT,
            ["env=math", "pipeline=ppo", "actor_rollout_ref.rollout.n_steps=4"],
            "n_steps=4 cuts the episodes of robots, but env=math is text",
        ),
        (
            TEXT,
            ["env=math", "pipeline=ppo", "trainer=mujoco_control", "model=tiny_lm"],
            "n_steps=2048 cuts the episodes of robots, but env=math is text: take a trainer preset "
            "for text, such as trainer=laptop_text",
        ),
        (TEXT, ["env=math", "rollout=server"], "server.urls=[] names 0 servers"),
        (TEXT, [*SERVER, "trainer.n_gpus_per_node=2"], "the job has 2 ranks: name one for each"),
        (TEXT, [*SERVER, "trainer.deterministic=true"], "use rollout=hf"),
        (
            TEXT,
            ["env=math", "rollout=server", f"{SERVER_KEY}.urls=['localhost:8100']"],
            "urls=localhost:8100 must be the address of an inference server: http://HOST:PORT",
        ),
        (
            TEXT,
            ["env=math", "rollout=server", f"{SERVER_KEY}.urls=['http://me:key@localhost']"],
            f"put the token into a file and set {SERVER_KEY}.token_file",
        ),
        (TEXT, [*SERVER, f"{SERVER_KEY}.token_file=/no/such"], "/no/such cannot be read"),
        (
            TEXT,
            ["env=math", "rollout=server", f"{SERVER_KEY}.urls=['http://gpu7:8100']"],
            "weights_folder=null is memory of this one: name a folder that both machines",
        ),
        (TEXT, [*SERVER, f"{SERVER_KEY}.weights_folder=/no/such"], "/no/such is not a folder"),
        (
            TEXT,
            [*SERVER, f"{SERVER_KEY}.weights=collective", f"{SERVER_KEY}.weights_folder=/tmp"],
            "weights_folder=/tmp is read with actor_rollout_ref.rollout.server.weights=folder",
        ),
        (
            spec(),
            ["model=tiny_lm"],
            "model.policy=causal_lm generates text, but env=metaworld needs actions",
        ),
        (spec(), ["rollout=hf"], "rollout.name=hf generates text, but env=metaworld needs actions"),
    ],
)
def test_settings_of_the_other_domain_are_refused(
    env: EnvSpec, overrides: list[str], expected: str
) -> None:
    assert any(expected in problem for problem in environment(env, *overrides))


@pytest.mark.parametrize(
    ("env", "overrides", "expected"),
    [
        (spec(renders=False), [], "pipeline=embodied_srpo compares videos"),
        (spec(renders=False), ["pipeline=grpo", "reward=srpo"], "reward.name=srpo compares videos"),
        (
            spec(renders=False),
            ["pipeline=grpo", "reward.name=json:loads"],
            "or reward.encoder=null",
        ),
        (
            spec(success=False),
            [],
            "pipeline=embodied_srpo needs the environment's own success flag",
        ),
        (
            spec(success=False),
            ["pipeline=grpo"],
            "reward.name=success needs the environment's own success flag",
        ),
        (
            replace(spec(tasks=["a", "b", "c"]), tasks_with_distance=("b",)),
            ["reward=oracle"],
            "the true distance to success, which env=metaworld does not report for a, c: leave them "
            "out of env.tasks, or use reward=srpo.",
        ),
        (
            replace(spec(success=False, tasks=["a"]), tasks_with_distance=()),
            ["env=gymnasium", "env.id=Reacher-v5", "pipeline=ppo", "reward=oracle"],
            "which env=gymnasium env.id=Reacher-v5 does not report: use reward=return.",
        ),
        (
            spec(success=False),
            ["trainer=classic_control"],
            "has none: use pipeline=ppo reward=return.",
        ),
        (
            spec(success=False),
            ["pipeline=ppo", "env=gymnasium", "env.id=CartPole-v1", "reward=success"],
            "the info of the first step of env=gymnasium env.id=CartPole-v1 has neither is_success "
            "nor success: use reward=return, or env.kwargs.reports_success=true if a later info",
        ),
        (
            spec(success=False),
            ["pipeline=ppo", "reward=success"],
            "has none: use reward=return.",
        ),
        (
            spec(success=False),
            ["pipeline=ppo", "reward=srpo"],
            "has none: use reward=return.",
        ),
        (
            spec(success=False),
            ["trainer=laptop"],
            "has none: use pipeline=grpo reward=return.",
        ),
        (
            spec(images=False),
            ["pipeline=grpo", "trainer.blind=true"],
            "trainer.blind=true blackens images",
        ),
        (spec(instruction=False), [], "the policy cannot distinguish them"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(
    env: EnvSpec, overrides: list[str], expected: str
) -> None:
    found = environment(env, *overrides)
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.task_weights=[2,0]"], []),
        (
            ["data.task_weights=[1]"],
            ["data.task_weights=[1] must have a whole number for each of the 2 tasks (a, b)"],
        ),
        (["data.task_weights=[1,-1]"], ["none below 0 and not all 0"]),
        (["data.task_weights=[0,0]"], ["none below 0 and not all 0"]),
        (
            ["pipeline=grpo", "env=math", "data.task_weights=[1,1]", "data.train_files=[a.jsonl]"],
            ["leave one of them out"],
        ),
    ],
)
def test_weights_of_tasks_are_whole_numbers_one_for_each(
    overrides: list[str], expected: list[str]
) -> None:
    env = TEXT if "env=math" in overrides else spec()
    found = [problem for problem in environment(env, *overrides) if "task_weights" in problem]
    assert [part in problem for part, problem in zip(expected, found, strict=True)] == [True] * len(
        expected
    )


@pytest.mark.parametrize(
    ("env", "overrides", "expected"),
    [
        (spec(), [], None),
        (spec(tasks=("only",)), [], "has one task"),
        (
            spec(success=False),
            ["pipeline=grpo", "reward=return"],
            "reports no success",
        ),
        (
            TEXT,
            ["pipeline=grpo", "env=math", "data.train_files=[a.jsonl]"],
            "data.train_files has prompts",
        ),
    ],
)
def test_prompts_follow_success_only_if_tasks_differ_in_it(
    env: EnvSpec, overrides: list[str], expected: str | None
) -> None:
    found = [
        problem
        for problem in environment(env, *overrides, "data.task_sampling=learnable")
        if "task_sampling" in problem
    ]
    assert len(found) == (expected is not None)
    assert (
        expected is None
        or found[0].endswith(f"and {expected}: leave it out.")
        or expected in found[0]
    )


@pytest.mark.parametrize("weights", ["[3]", "[0]", "[1,1]"])
def test_weights_that_have_no_other_task_to_weigh_against_are_refused(weights: str) -> None:
    (found,) = environment(spec(tasks=("only",)), f"data.task_weights={weights}")
    assert f"data.task_weights={weights} divides prompts between tasks, but env=" in found
    assert found.endswith(" has one task: leave it out.")


def test_a_sentence_about_many_tasks_names_the_first_ones() -> None:
    many = spec(instruction=False, tasks=tuple(map(str, range(200_000))))
    for found in environment(many, "data.task_weights=[1]"):
        assert "(0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 199990 more, 200000 tasks in all)" in found


def test_one_task_needs_no_instruction() -> None:
    assert environment(spec(instruction=False, tasks=("only",))) == []


def test_return_needs_neither_video_nor_success() -> None:
    assert (
        environment(
            spec(images=False, renders=False, success=False), "pipeline=grpo", "reward=return"
        )
        == []
    )


def test_a_reward_of_the_users_own_may_do_without_video() -> None:
    assert (
        environment(
            spec(renders=False), "pipeline=grpo", "reward.name=json:loads", "reward.encoder=null"
        )
        == []
    )
