"""A job that runs but learns badly starts with a warning."""

import pytest

from siirl.params.parser import parse_config
from siirl.preflight.config_checks import warnings_of
from tests.preflight.own_environments import spec


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
def test_a_job_that_learns_badly_gets_a_warning(overrides: list[str], expected: str) -> None:
    found = list(warnings_of(parse_config(overrides), spec()))
    assert len(found) == 1
    assert expected in found[0]


def test_the_demo_job_gives_no_warning() -> None:
    assert list(warnings_of(parse_config(), spec())) == []
