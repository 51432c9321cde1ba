"""Invalid combinations of valid keys: each refusal with its value, place and
remedy.
"""

import dataclasses
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
import pytest

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, EnvSpec
from envs.text import text_spec
from siirl.errors import ConfigError
from siirl.params.domains import is_text
from siirl.params.parser import parse, parse_config
from siirl.params.reward_args import RewardArguments
from siirl.preflight.config_checks import config_problems, warnings_of
from siirl.preflight.environment_checks import environment_problems
from siirl.preflight.unread import unread_in_domain, unread_problems
from vjepa.reward_settings import TrajectoryRewardConfig

Problems = Callable[..., list[str]]
# the shipped one falls, and asks for a last step
SERVER_KEY = "actor_rollout_ref.rollout.server"
SERVER = ["env=math", "rollout=server", f"{SERVER_KEY}.urls=['http://127.0.0.1:8100']"]
CONSTANT_RATE = "actor_rollout_ref.actor.optim.scheduler=constant_with_warmup"


def problems(*overrides: str) -> list[str]:
    parsed = parse(overrides)
    return [
        str(problem)
        for problem in (
            *config_problems(parsed.config),
            *unread_problems(parsed.config, named=parsed.named),
        )
    ]


def spec(
    *,
    images: bool = True,
    renders: bool = True,
    instruction: bool = True,
    success: bool = True,
    tasks: Sequence[str] = ("a", "b"),
) -> EnvSpec:
    """An environment that has what is asked for."""
    parts: dict[str, gymnasium.Space] = {
        PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    }
    if images:
        parts[IMAGES] = gymnasium.spaces.Box(0, 255, (1, 64, 64, 3), np.uint8)
    if instruction:
        parts[INSTRUCTION] = gymnasium.spaces.Text(20)
    actions = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    return EnvSpec(
        "own",
        tuple(tasks),
        gymnasium.spaces.Dict(parts),
        actions,
        max_episode_steps=100,
        reports_success=success,
        renders=renders,
    )


TEXT = text_spec(name="math", tasks=["sums-2", "sums-3"], max_turns=1, max_action_characters=100)


def environment(env: EnvSpec, *overrides: str) -> list[str]:
    parsed = parse(overrides)
    unread = unread_in_domain(parsed.config, text=is_text(env), named=parsed.named)
    return [str(problem) for problem in (*environment_problems(parsed.config, env), *unread)]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["pipeline=grpo"],
        ["pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1"],
        ["trainer=smoke"],
        ["experiment=blind"],
        ["cluster=local"],
        ["trainer.n_gpus_per_node=2"],
    ],
)
def test_shipped_jobs_have_no_problem(overrides: list[str]) -> None:
    assert problems(*overrides) == []


@pytest.mark.parametrize("overrides", [["pipeline=grpo", "reward=success"], [], ["reward=oracle"]])
def test_the_shipped_environment_fits_its_jobs(overrides: list[str]) -> None:
    assert environment(spec(), *overrides) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["data.train_batch_size=9", "trainer.n_gpus_per_node=2"],
            "data.train_batch_size=9 is not divisible by ranks",
        ),
        (
            [
                "actor_rollout_ref.rollout.n=3",
                "actor_rollout_ref.actor.ppo_mini_batch_size=3",
                "trainer.n_gpus_per_node=2",
            ],
            "= 9 trajectories are not divisible by ranks",
        ),
        (
            ["actor_rollout_ref.actor.ppo_mini_batch_size=5"],
            "ppo_mini_batch_size=5 does not divide data.train_batch_size=12",
        ),
        (["actor_rollout_ref.actor.ppo_mini_batch_size=24"], "make it 12, or another divisor"),
        (
            ["actor_rollout_ref.actor.fsdp_size=4", "trainer.n_gpus_per_node=2"],
            "fsdp_size=4 must divide the 2 ranks that train",
        ),
        (
            ["trainer.val_seed_offset=899970"],
            "takes seeds up to 900069, but those from 900000 on belong to demonstrations and "
            "training",
        ),
        (
            ["trainer.val_episodes=900001"],
            "trainer.val_episodes=900001: a task has 900000 held-out seeds",
        ),
        (["reward.encoder=null"], "compares videos: take reward.encoder=tiny"),
        (["pipeline=grpo", "reward.demonstrations=clips"], "reward.name=success uses none"),
        (["actor_rollout_ref.rollout.n=1"], "needs at least 2"),
        (
            ["algorithm.filter.success_low=0.9", "algorithm.filter.success_high=0.1"],
            "no group could pass",
        ),
        (["algorithm.adv_estimator=gae"], "needs the values of a critic"),
        (["algorithm.adv_estimator=remax"], "needs the column reward_baselines"),
        (
            ["algorithm.adv_estimator=opo", "actor_rollout_ref.rollout.n=1"],
            "algorithm.adv_estimator=opo compares the rollouts of a prompt",
        ),
        (
            ["algorithm.adv_estimator=grpo_passk", "algorithm.pass_k=9"],
            "algorithm.pass_k=9 is more than actor_rollout_ref.rollout.n=8",
        ),
        (["algorithm.pass_k=4"], "algorithm.pass_k=4 is read by grpo_passk, not by dr_grpo"),
        (
            ["algorithm.weight_factor_in_cpgd=naive"],
            "algorithm.weight_factor_in_cpgd=naive is read by cpgd, not by dr_grpo",
        ),
        (
            ["algorithm.adv_whitening=none"],
            "is read by gae and reinforce_plus_plus and reinforce_plus_plus_baseline, not by "
            "dr_grpo",
        ),
        (
            ["algorithm.adv_estimator=rloo", "algorithm.norm_adv_by_std_in_grpo=false"],
            "is read by grpo and grpo_passk, not by rloo",
        ),
        (
            [
                "pipeline=grpo",
                "algorithm.adv_estimator=reinforce_plus_plus",
                "algorithm.min_group_spread=0.5",
            ],
            "min_group_spread=0.5 is read by estimators that compare the rollouts of a group, not "
            "by reinforce_plus_plus",
        ),
        (
            ["algorithm.gamma=0.9"],
            "algorithm.gamma=0.9 is read by gae and reinforce_plus_plus, not by dr_grpo",
        ),
        (["algorithm.lam=0.9"], "algorithm.lam=0.9 is read by gae, not by dr_grpo"),
        (
            ["trainer.total_steps=null", "trainer.max_minutes=null", CONSTANT_RATE],
            "The run has no end",
        ),
        (
            ["env=math", "pipeline=grpo", "trainer.total_steps=null"],
            "actor_rollout_ref.actor.optim.scheduler=cosine_with_warmup decays until the run's "
            "last step",
        ),
        (
            [
                "trainer.total_steps=null",
                "actor_rollout_ref.actor.optim.scheduler=linear_with_warmup",
            ],
            "actor_rollout_ref.actor.optim.scheduler=linear_with_warmup decays until the run's "
            "last step",
        ),
        (
            [
                "env=gymnasium",
                "env.id=CartPole-v1",
                "pipeline=ppo",
                "trainer.total_steps=null",
                CONSTANT_RATE,
                "critic.optim.scheduler=cosine_with_warmup",
            ],
            "critic.optim.scheduler=cosine_with_warmup decays until the run's last step",
        ),
        (
            [
                "trainer.total_steps=null",
                CONSTANT_RATE,
                "actor_rollout_ref.actor.optim.warmup_steps=null",
                "actor_rollout_ref.actor.optim.warmup_ratio=0.1",
            ],
            "actor_rollout_ref.actor.optim.warmup_ratio=0.1 is a share of the run's steps",
        ),
        (["trainer.save_freq=0"], "trainer.save_freq=0"),
        (["trainer.experiment_name=a/b"], "trainer.experiment_name='a/b'"),
        (["trainer.experiment_name=.."], "trainer.experiment_name='..'"),
        (["reward.name=spro"], "Unknown reward.name 'spro'. Did you mean 'srpo'?"),
        (["reward.name=no_such_module:reward"], "there is no module 'no_such_module'"),
        (["actor_rollout_ref.model.policy=tiny_vlaa"], "Did you mean 'tiny_vla'?"),
        (["trainer.logger=[tensorbord]"], "Did you mean 'tensorboard'?"),
        (["env=gymnasium"], "env=gymnasium needs env.id"),
        (["env=custom"], "env=custom needs your class"),
        (["cluster=local", "trainer.n_gpus_per_node=2"], "cluster=local runs in one process"),
        (["cluster=local", "cluster.address=there:6379"], "which cluster=local does not use"),
        (["trainer.nnodes=2"], "needs a Ray cluster that spans the machines"),
    ],
)
def test_a_job_that_cannot_work_is_refused(overrides: list[str], expected: str) -> None:
    found = problems(*overrides)
    assert len(found) == 1
    assert expected in found[0]


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


def test_a_key_that_only_text_reads_is_taken_for_text() -> None:
    assert environment(TEXT, "env=math", "pipeline=grpo", "data.max_response_length=7") == []


@pytest.mark.parametrize(
    ("env", "overrides", "expected"),
    [
        (
            TEXT,
            ["env=math", "pipeline=embodied_srpo"],
            "pipeline=embodied_srpo rewards episode videos, and env=math is text",
        ),
        (
            TEXT,
            ["env=math", "pipeline=grpo", "reward=srpo"],
            "reward.name=srpo compares videos, and env=math is text",
        ),
        (
            TEXT,
            ["env=math", "pipeline=grpo", "model=tiny_vla"],
            "model.policy=tiny_vla acts on images, and env=math is text",
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
            "the longest row fits no micro-batch",
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
            "2 ranks already have a process group",
        ),
        (
            TEXT,
            ["env=math", "actor_rollout_ref.rollout.mode=async", "trainer.deterministic=true"],
            "batches by arrival time",
        ),
        (TEXT, ["env=math", "rollout=server"], "server.urls=[] names 0 servers"),
        (TEXT, [*SERVER, "trainer.n_gpus_per_node=2"], "the job has 2 ranks: name one for each"),
        (TEXT, [*SERVER, "trainer.deterministic=true"], "take rollout=hf"),
        (
            TEXT,
            ["env=math", "rollout=server", f"{SERVER_KEY}.urls=['localhost:8100']"],
            "urls=localhost:8100 must be the address of an inference server: http://HOST:PORT",
        ),
        (
            TEXT,
            ["env=math", "rollout=server", f"{SERVER_KEY}.urls=['http://me:key@localhost']"],
            f"put the token into a file and name it in {SERVER_KEY}.token_file",
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
            "model.policy=causal_lm generates text, and env=metaworld needs actions",
        ),
        (spec(), ["rollout=hf"], "rollout.name=hf generates text, and env=metaworld needs actions"),
    ],
)
def test_what_is_of_the_other_domain_is_refused(
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
def test_prompts_follow_success_where_tasks_differ_in_it(
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


@pytest.mark.parametrize("estimator", ["gae", "remax"])
def test_a_graph_of_the_users_own_may_provide_what_an_estimator_needs(estimator: str) -> None:
    assert (
        problems(
            f"algorithm.adv_estimator={estimator}", "dag.custom_pipeline_fn=my_module:my_pipeline"
        )
        == []
    )


def test_an_estimator_of_the_users_own_may_read_any_key() -> None:
    assert (
        problems(
            "user_modules=[mine]",
            "algorithm.adv_estimator=my_own",
            "algorithm.gamma=0.9",
            "algorithm.pass_k=4",
        )
        == []
    )


def test_names_of_plug_ins_are_compared_with_the_shipped_ones() -> None:
    found = problems("algorithm.adv_estimator=gpro", "actor_rollout_ref.actor.loss=vanila")
    assert [message.split(" Known")[0] for message in found] == [
        "Unknown algorithm.adv_estimator 'gpro'. Did you mean 'grpo'?",
        "Unknown actor_rollout_ref.actor.loss 'vanila'. Did you mean 'vanilla'?",
    ]


def test_problems_are_errors_that_a_caller_may_catch() -> None:
    assert all(
        isinstance(problem, ConfigError)
        for problem in config_problems(parse_config(["trainer.save_freq=0"]))
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["actor_rollout_ref.rollout.top_p=0.9"], "top_p=0.9 biases the ratio"),
        (
            ["env=math", "pipeline=grpo", "actor_rollout_ref.rollout.top_k=5"],
            "top_k=5 biases the ratio",
        ),
        (
            ["algorithm.adv_estimator=reinforce_plus_plus"],
            "min_group_spread=0.05 is not read: reinforce_plus_plus compares no groups",
        ),
        (
            ["actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_type=k1"],
            "gradient of mean zero",
        ),
        (["algorithm.filter.success_low=0.1"], "drops groups without success"),
        (["env.num_servers=1", "trainer.n_gpus_per_node=2"], "each rank gets one server"),
    ],
)
def test_what_works_but_badly_is_warned_of(overrides: list[str], expected: str) -> None:
    found = list(warnings_of(parse_config(overrides), spec()))
    assert len(found) == 1
    assert expected in found[0]


def test_the_demo_job_gives_no_warning() -> None:
    assert list(warnings_of(parse_config(), spec())) == []


def test_choices_agree_with_the_registries() -> None:
    from siirl.algos.aggregation import AGGREGATIONS
    from siirl.algos.kl import KL_NAMES, KL_WITHOUT_GRADIENT
    from siirl.params import algorithm_args, model_args
    from siirl.params.aliases import ALIASES
    from siirl.preflight import config_checks

    old_names = {value for key, value in ALIASES if key == "algorithm.kl_penalty"}
    assert {name for name in KL_NAMES if name.rstrip("+") not in old_names} == set(
        algorithm_args.KL_ESTIMATORS
    )
    assert set(config_checks.KL_WITHOUT_GRADIENT) == KL_WITHOUT_GRADIENT - old_names
    assert set(model_args.LOSS_AGGREGATIONS) == set(AGGREGATIONS)


def test_held_out_seeds_end_where_those_of_demonstrations_and_of_training_begin() -> None:
    from siirl.data_coordinator.task_stream import FIRST_TRAINING_SEED
    from siirl.imitation import warm_starts
    from siirl.preflight import config_checks

    of_demonstrations = {
        warm_starts.OTHER_FIRST_SEED,
        *(first for _, first in warm_starts.EXPERTS.values()),
    }
    assert config_checks.FIRST_DEMONSTRATION_SEED == min(of_demonstrations) < FIRST_TRAINING_SEED


# Settings that another package owns


def test_keys_of_the_trajectory_reward_are_vjepas_settings() -> None:
    keys = {field.name: field for field in dataclasses.fields(RewardArguments)}
    for setting in dataclasses.fields(TrajectoryRewardConfig):
        key = keys[setting.name]
        assert key.default == setting.default
        assert setting.metadata.items() <= key.metadata.items()
