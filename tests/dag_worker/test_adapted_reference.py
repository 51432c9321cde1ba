"""KL reference of a robots' job: the policy below its adapters, or a separate copy."""

import torch

from envs.registry import env_spec
from siirl.dag_worker.embodied_components import EmbodiedBuilder
from siirl.engine.actor.reference import WithoutAdapter
from siirl.engine.training.collectives import OneProcess
from siirl.models import save_policy
from siirl.params.parser import parse_config

CARTPOLE = (
    "env=gymnasium",
    "env.id=CartPole-v1",
    "pipeline=grpo",
    "actor_rollout_ref.model.options={width: 16}",
)
KL, ADAPTERS = "actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.model.lora.rank=2"


def reference_of(*words):
    """The reference of a job, and its policy, which only states that it has adapters: real ones
    need fifteen seconds of imports.
    """
    config, spec = parse_config([*CARTPOLE, *words]), env_spec("gymnasium", id="CartPole-v1")
    make = EmbodiedBuilder(config, spec, ranks=OneProcess(), device=torch.device("cpu"))
    policy, lora = make.evaluated(), config.actor_rollout_ref.model.lora
    policy.lora = lora if lora.rank > 0 else None
    return make.reference(None, policy), policy


def test_the_base_model_of_adapters_is_the_reference():
    reference, policy = reference_of(KL, ADAPTERS)
    assert isinstance(reference, WithoutAdapter)
    assert reference.model is policy


def test_the_reference_is_a_separate_policy_without_adapters_and_absent_without_a_kl():
    reference, policy = reference_of(KL)
    assert reference.engine.module is not policy
    assert reference_of(ADAPTERS)[0] is None


def test_a_named_reference_policy_is_used_with_adapters_too(tmp_path):
    save_policy(reference_of()[1], tmp_path)
    reference, policy = reference_of(KL, ADAPTERS, f"actor_rollout_ref.ref.path={tmp_path}")
    assert reference.engine.module is not policy
