"""Jobs that are refused whatever their environment, each with value, place and remedy."""

import dataclasses

import pytest

from siirl.errors import ConfigError
from siirl.params.parser import parse, parse_config
from siirl.params.reward_args import RewardArguments
from siirl.preflight.config_checks import config_problems
from siirl.preflight.unread import unread_problems
from vjepa.reward_settings import TrajectoryRewardConfig

# the shipped schedule decays, which needs a last step
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
            [
                "pipeline=ppo",
                "critic.ppo_mini_batch_size=1",
                "actor_rollout_ref.actor.ppo_mini_batch_size=6",
                "actor_rollout_ref.rollout.n=2",
                "trainer.n_gpus_per_node=4",
            ],
            "critic.ppo_mini_batch_size=1 x actor_rollout_ref.rollout.n=2 = 2 trajectories are "
            "not divisible by ranks",
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
        (["reward.encoder=null"], "compares videos: use reward.encoder=tiny"),
        (
            ["reward=video_value", "reward.success_bank_size=4"],
            "reward.success_bank_size=4 keeps too few episodes",
        ),
        (
            ["reward=video_value", "reward.success_bank_size=9", "reward.min_failure_window=12"],
            "Use 12 or more, or reward=success",
        ),
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


def test_choices_agree_with_the_registries() -> None:
    from siirl.algos.aggregation import AGGREGATIONS
    from siirl.algos.filters import FILTERS, MEASURES
    from siirl.algos.kl import KL_NAMES
    from siirl.params import algorithm_args, model_args
    from siirl.params.aliases import ALIASES

    old_names = {value for key, value in ALIASES if key == "algorithm.kl_penalty"}
    assert {name for name in KL_NAMES if name.rstrip("+") not in old_names} == set(
        algorithm_args.KL_ESTIMATORS
    )
    assert set(model_args.LOSS_AGGREGATIONS) == set(AGGREGATIONS)
    assert set(algorithm_args.FILTERS) == set(FILTERS)
    assert set(algorithm_args.FILTER_METRICS) == set(MEASURES)


# Settings that another package owns


def test_keys_of_the_trajectory_reward_are_vjepas_settings() -> None:
    keys = {field.name: field for field in dataclasses.fields(RewardArguments)}
    for setting in dataclasses.fields(TrajectoryRewardConfig):
        key = keys[setting.name]
        assert key.default == setting.default
        assert setting.metadata.items() <= key.metadata.items()
