"""The names of estimators in siirl.params match the estimators, which it does not import."""

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from estimator_cases import SHIPPED

from siirl.algos.advantages import ADVANTAGES, CPGD_WEIGHTS, WHITENINGS
from siirl.compat import core_algos
from siirl.params import algorithm_args
from siirl.params.parser import parse
from siirl.params.registered_names import ESTIMATORS, GROUP_ESTIMATORS, registrations_in
from siirl.preflight.key_readers import READERS


def parameters(name: str) -> set[str]:
    return set(inspect.signature(ADVANTAGES[name]).parameters)


def test_estimators_are_read_from_their_source_with_all_their_arguments():
    assert {name: frozenset(parameters(name)) for name in SHIPPED} == ESTIMATORS


def test_a_new_estimator_is_one_function():
    source = """
@register_adv_est("best_of_group", reward_at_finish=True)
def compute_best_of_group(token_level_rewards, response_mask, index, /, gamma=1.0, *, reward_baselines):
    return token_level_rewards, token_level_rewards

def not_registered(lam): ...
"""
    arguments = {"token_level_rewards", "response_mask", "index", "gamma", "reward_baselines"}
    found = registrations_in(source, decorator="register_adv_est")
    assert {name: estimator.arguments for name, estimator in found.items()} == {
        "best_of_group": arguments
    }


NEW_FILES = {
    "advantages/mine.py": """
from siirl.algos.advantages.advantage_registry import register_adv_est

@register_adv_est("mine")
def compute_mine(token_level_rewards, response_mask):
    return token_level_rewards, token_level_rewards
""",
    "policy_losses/mine.py": """
from siirl.algos.policy_losses.loss_registry import PolicyLoss, register_policy_loss

@register_policy_loss("mine")
def mine_policy_loss(*, log_probs_BT, mask_BT):
    return PolicyLoss(loss_BT=-log_probs_BT * mask_BT)
""",
}


def test_a_new_file_of_the_folder_registers_its_estimator_or_loss(
    tmp_path: Path, repository: Path
) -> None:
    for package in ("siirl", "envs", "vjepa", "pipelines"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / package, tmp_path / package, ignore=ignored)
    for name, source in NEW_FILES.items():
        (tmp_path / "siirl/algos" / name).write_text(source)
    code = "from siirl.algos import ADVANTAGES as a, POLICY_LOSSES as l; a['mine'], l['mine']"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_reading_the_estimators_imports_no_torch():
    code = "import sys, siirl.params.registered_names; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_estimators_that_need_a_group_are_those_that_take_its_index():
    assert set(GROUP_ESTIMATORS) == {name for name in SHIPPED if "index" in parameters(name)}


def test_the_documents_names_are_those_of_the_functions():
    for name in SHIPPED:
        assert getattr(core_algos, ADVANTAGES[name].__name__) is ADVANTAGES[name]
    with pytest.raises(AttributeError, match="has no attribute 'compute_nothing'"):
        _ = core_algos.compute_nothing


@pytest.mark.parametrize(
    "key",
    ["gamma", "lam", "adv_whitening", "norm_adv_by_std_in_grpo", "pass_k", "weight_factor_in_cpgd"],
)
def test_the_estimators_that_read_a_key_are_those_that_take_it(key):
    configs = {name: parse([f"algorithm.adv_estimator={name}"]).config for name in SHIPPED}
    readers = READERS[f"algorithm.{key}"]
    reading = {
        name
        for name, config in configs.items()
        if all(reader.applies(config) for reader in readers)
    }
    assert reading == {name for name in SHIPPED if key in parameters(name)}


def test_the_values_of_keys_are_those_that_the_formulas_know():
    assert (algorithm_args.ADV_WHITENINGS, algorithm_args.CPGD_WEIGHTS) == (
        WHITENINGS,
        CPGD_WEIGHTS,
    )


@pytest.mark.parametrize(
    ("asked", "estimator", "loss"),
    [("gspo", "grpo", "gspo"), ("cpgd", "cpgd", "cpgd"), ("opo", "opo", "vanilla")],
)
def test_the_name_of_an_algorithm_selects_its_loss_too(asked, estimator, loss):
    config = parse([f"algorithm.adv_estimator={asked}"]).config
    assert (config.algorithm.adv_estimator, config.actor_rollout_ref.actor.loss) == (
        estimator,
        loss,
    )


def test_a_loss_that_is_named_after_the_algorithm_wins():
    config = parse(["algorithm.adv_estimator=cpgd", "actor_rollout_ref.actor.loss=vanilla"]).config
    assert config.actor_rollout_ref.actor.loss == "vanilla"
