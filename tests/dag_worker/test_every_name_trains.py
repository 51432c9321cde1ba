"""Every advantage, loss, KL and aggregation that a configuration may name, in a real training run.

Two steps of two epochs on CartPole, from the command line's words: rollouts, reward, advantage,
update. The formulas' tests check the numbers; these check that every name reaches the weights.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from siirl.algos import ADVANTAGES, AGGREGATIONS, POLICY_LOSSES
from siirl.algos.kl import KL_NAMES
from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.params.algorithm_args import ADV_WHITENINGS, CPGD_WEIGHTS
from siirl.params.model_args import IMPORTANCE_BOUNDS, IMPORTANCE_LEVELS
from siirl.params.parser import parse_config
from siirl.preflight.config_checks import config_problems
from siirl.preflight.configured_graph import load_graph

SMALL = (
    "env=gymnasium", "env.id=CartPole-v1", "cluster=local", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.actor.optim.lr=1e-2",
    "env.num_servers=1", "env.envs_per_server=6", "env.max_episode_steps=40", "trainer.val_episodes=0", "trainer.record_episodes=0",
    "trainer.max_minutes=null", "trainer.total_steps=2", "trainer.save_freq=-1", "trainer.deterministic=true",
    "actor_rollout_ref.model.options={chunk_length: 4, width: 16}",
)  # fmt: skip
PIPELINE_OF = {"gae": "ppo", "remax": "remax"}  # they read columns that only these provide
KL_IN_REWARD = (
    "dag.custom_pipeline_fn=walk_pipelines:kl_in_reward",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.kl_coef=0.5",
)


def built_in(registry: Mapping[str, Callable[..., object]]) -> list[str]:
    """Names of siirl's own functions: other test files register examples."""
    return sorted(
        name
        for name, function in registry.items()
        if function.__module__.startswith("siirl.algos.")
    )


@pytest.fixture(autouse=True)
def not_deterministic_afterwards():
    yield
    torch.use_deterministic_algorithms(False)


def train(folder: Path, *overrides: str, pipeline: str = "grpo") -> tuple[list[dict], torch.Tensor]:
    """Metrics of the steps, and all weights at the end."""
    folder.mkdir(exist_ok=True)
    config = parse_config([f"pipeline={pipeline}", *SMALL, *overrides])
    assert [str(problem) for problem in config_problems(config)] == []
    worker = DAGWorker(
        config=config,
        graph=load_graph(config),
        rank=0,
        world_size=1,
        init_method="",
        backend="gloo",
        run_folder=folder,
    )
    steps = []
    for event in worker.run():
        if isinstance(event, StepDone):
            steps.append(event.metrics)
            weights = torch.cat(
                [
                    parameter.detach().flatten().clone()
                    for parameter in worker.components.context.actor.engine.module.parameters()
                ]
            )
    return steps, weights


def assert_trained(steps: list[dict], weights: torch.Tensor) -> None:
    assert [step["actor/updates"] for step in steps] == [2.0, 2.0]
    assert all(step["actor/grad_norm"] > 0 for step in steps)
    assert bool(torch.isfinite(weights).all())


@pytest.mark.parametrize("name", built_in(ADVANTAGES))
def test_an_advantage_trains(tmp_path, name):
    assert_trained(
        *train(tmp_path, f"algorithm.adv_estimator={name}", pipeline=PIPELINE_OF.get(name, "grpo"))
    )


@pytest.mark.parametrize("weighting", CPGD_WEIGHTS)
def test_a_weighting_of_cpgd_trains(tmp_path, weighting):
    assert_trained(
        *train(
            tmp_path, "algorithm.adv_estimator=cpgd", f"algorithm.weight_factor_in_cpgd={weighting}"
        )
    )


def test_pass_at_two_trains(tmp_path):
    assert_trained(*train(tmp_path, "algorithm.adv_estimator=grpo_passk", "algorithm.pass_k=2"))


@pytest.mark.parametrize("whitening", ADV_WHITENINGS)
def test_a_whitening_trains(tmp_path, whitening):
    assert_trained(
        *train(
            tmp_path,
            "algorithm.adv_estimator=reinforce_plus_plus",
            f"algorithm.adv_whitening={whitening}",
        )
    )


def test_gspo_is_an_advantage_and_a_loss(tmp_path):
    assert_trained(*train(tmp_path, "algorithm.adv_estimator=gspo"))


@pytest.mark.parametrize("name", built_in(POLICY_LOSSES))
def test_a_loss_trains(tmp_path, name):
    steps, weights = train(tmp_path, f"actor_rollout_ref.actor.loss={name}")
    assert_trained(steps, weights)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_an_aggregation_trains(tmp_path, name):
    assert_trained(*train(tmp_path, f"actor_rollout_ref.actor.loss_agg_mode={name}"))


@pytest.mark.parametrize("bound", IMPORTANCE_BOUNDS)
@pytest.mark.parametrize("level", IMPORTANCE_LEVELS)
def test_an_importance_weight_trains(tmp_path, level, bound):
    importance = "actor_rollout_ref.actor.importance"
    assert_trained(*train(tmp_path, f"{importance}.level={level}", f"{importance}.bound={bound}"))


@pytest.mark.parametrize("name", KL_NAMES)
def test_a_kl_in_the_loss_trains(tmp_path, name):
    steps, weights = train(
        tmp_path,
        "actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.actor.kl_loss_coef=0.5",
        f"actor_rollout_ref.actor.kl_loss_type={name}",
    )
    assert_trained(steps, weights)
    # in the first epoch of the first step the policy is its own reference
    assert steps[1]["actor/kl_loss"] != 0.0


@pytest.mark.parametrize("name", KL_NAMES)
def test_a_kl_in_the_reward_trains(tmp_path, name):
    steps, weights = train(tmp_path, *KL_IN_REWARD, f"algorithm.kl_penalty={name}")
    assert_trained(steps, weights)
    assert steps[0]["actor/reward_kl_penalty"] == pytest.approx(0.0, abs=1e-6)
    assert abs(steps[1]["actor/reward_kl_penalty"]) > 1e-4
    assert [step["actor/kl_coef"] for step in steps] == [0.5, 0.5]


def test_an_adaptive_coefficient_shrinks_without_kl(tmp_path):
    steps, weights = train(
        tmp_path, *KL_IN_REWARD, "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=60"
    )
    assert_trained(steps, weights)
    assert [step["actor/kl_coef"] for step in steps] == pytest.approx(
        [0.5, 0.5 * (1 - 0.2 * 6 / 60)]
    )


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline", "rloo"])
def test_an_advantage_trains_with_the_kl_in_its_reward(tmp_path, name):
    assert_trained(*train(tmp_path, *KL_IN_REWARD, f"algorithm.adv_estimator={name}"))


LOSS = "actor_rollout_ref.actor.loss"
# Arguments beside which a key is read, and the key with a value other than its default.
KEYS = {
    "gamma": (("algorithm.adv_estimator=reinforce_plus_plus",), "algorithm.gamma=0.5"),
    "lam": (("algorithm.adv_estimator=gae",), "algorithm.lam=0.5"),
    "adv_whitening": (
        ("algorithm.adv_estimator=reinforce_plus_plus",),
        "algorithm.adv_whitening=none",
    ),
    "norm_adv_by_std_in_grpo": ((), "algorithm.norm_adv_by_std_in_grpo=false"),
    "min_group_spread": ((), "algorithm.min_group_spread=1000"),
    "pass_k": (("algorithm.adv_estimator=grpo_passk",), "algorithm.pass_k=2"),
    "weight_factor_in_cpgd": (
        ("algorithm.adv_estimator=cpgd",),
        "algorithm.weight_factor_in_cpgd=naive",
    ),
    "policy_drift_coef": ((f"{LOSS}=cpgd",), f"{LOSS}_options.policy_drift_coef=5.0"),
    "tau_neg": ((f"{LOSS}=sapo",), f"{LOSS}_options.tau_neg=9.0"),
    "clip_cov_lb": (
        (f"{LOSS}=clip_cov", f"{LOSS}_options.clip_cov_ratio=0.5"),
        f"{LOSS}_options.clip_cov_lb=-5.0",
    ),
    "kl_cov_ratio": ((f"{LOSS}=kl_cov",), f"{LOSS}_options.kl_cov_ratio=0.5"),
    "clip_ratio_high": ((), "actor_rollout_ref.actor.clip_ratio_high=0.0001"),
    "clip_ratio of gspo": ((f"{LOSS}=gspo",), "actor_rollout_ref.actor.clip_ratio_high=0.5"),
}


@pytest.mark.slow  # two runs for each key: a minute
@pytest.mark.parametrize("key", KEYS)
def test_a_command_line_key_changes_the_trained_weights(tmp_path, key):
    together, other = KEYS[key]
    pipeline = "ppo" if key == "lam" else "grpo"
    weights = [
        train(tmp_path / name, *together, *more, pipeline=pipeline)[1]
        for name, more in (("default", ()), ("other", (other,)))
    ]
    assert not torch.allclose(weights[0], weights[1])
