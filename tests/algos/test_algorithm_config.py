"""What siirl.params says of estimators without importing them, against the estimators."""

import inspect

import pytest
from estimator_cases import SHIPPED

from siirl.algos.advantages import ADVANTAGES, CPGD_WEIGHTS, WHITENINGS
from siirl.params import algorithm_args
from siirl.params.algorithm_args import ESTIMATORS, GROUP_ESTIMATORS
from siirl.params.parser import parse
from siirl.preflight.key_readers import READERS


def parameters(name: str) -> set[str]:
    return set(inspect.signature(ADVANTAGES[name]).parameters)


def test_the_known_estimators_are_those_that_are_registered():
    assert set(ESTIMATORS) == SHIPPED


def test_estimators_that_need_a_group_are_those_that_take_its_index():
    assert set(GROUP_ESTIMATORS) == {name for name in SHIPPED if "index" in parameters(name)}


@pytest.mark.parametrize("key", ["gamma", "lam", "adv_whitening", "norm_adv_by_std_in_grpo", "pass_k", "weight_factor_in_cpgd"])
def test_the_estimators_that_read_a_key_are_those_that_take_it(key):
    configs = {name: parse([f"algorithm.adv_estimator={name}"]).config for name in SHIPPED}
    readers = READERS[f"algorithm.{key}"]
    reading = {name for name, config in configs.items() if all(reader.there(config) for reader in readers)}
    assert reading == {name for name in SHIPPED if key in parameters(name)}


def test_the_values_of_keys_are_those_that_the_formulas_know():
    assert (algorithm_args.ADV_WHITENINGS, algorithm_args.CPGD_WEIGHTS) == (WHITENINGS, CPGD_WEIGHTS)


@pytest.mark.parametrize(("asked", "estimator", "loss"), [("gspo", "grpo", "gspo"), ("cpgd", "cpgd", "cpgd"), ("opo", "opo", "vanilla")])
def test_a_name_that_stands_for_an_algorithm_chooses_its_loss_too(asked, estimator, loss):
    config = parse([f"algorithm.adv_estimator={asked}"]).config
    assert (config.algorithm.adv_estimator, config.actor_rollout_ref.actor.loss) == (estimator, loss)


def test_a_loss_that_is_named_after_the_algorithm_wins():
    config = parse(["algorithm.adv_estimator=cpgd", "actor_rollout_ref.actor.loss=vanilla"]).config
    assert config.actor_rollout_ref.actor.loss == "vanilla"
