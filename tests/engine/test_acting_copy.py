"""Acting copies of VLA policies that a process group trains in bfloat16.

The copy computes as the sharded policy does, so their log-probs agree beyond bfloat16.
"""

import pytest
import torch
from ranks_at_work import run_on_ranks
from tiny_training import make_engine, weights

from envs.registry import env_spec
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.training.weight_sync import acting_copy
from siirl.gpu_checks.agreement import acted_and_trained
from siirl.models import openvla_vision
from siirl.models.policy_loader import build_policy
from tests.engine.test_openvla_over_ranks import trajectories
from tests.models.tiny_openvla import ENCODERS, know_tiny_encoders, write_checkpoint

TEMPERATURE = 1.3  # of tiny_training's engine


def gap(ranks, folder):
    """Largest difference between acting and training log-probs on this rank, and the copy's bytes
    per weight.
    """
    openvla_vision.ENCODERS.update(ENCODERS)  # of a separate process, which ends with the test
    spec = env_spec("libero", assets="stand_in", camera="agentview")
    policy = build_policy("openvla_oft", path=folder, spec=spec, seed=0, options={})
    copied = acting_copy(policy, torch.bfloat16)
    engine = make_engine(
        ranks, module=policy, micro_batch_size=3, compute_dtype=torch.bfloat16, optim=None
    )
    batch = trajectories(policy)
    batch["response_mask"] = torch.ones_like(batch["response_mask"])
    acting = EmbodiedEngine(
        policy=copied,
        temperature=TEMPERATURE,
        lockstep=False,
        batch_rows=8,
        compute_dtype=torch.bfloat16,
    )
    acted, trained = acted_and_trained(acting, engine, batch)
    return float((acted - trained).abs().max()), next(copied.parameters()).element_size()


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
def test_the_bfloat16_copy_acts_as_the_sharded_policy_trains(monkeypatch, tmp_path):
    folder = str(write_checkpoint(tmp_path, state=True))
    know_tiny_encoders(monkeypatch)
    for difference, bytes_a_weight in run_on_ranks(gap, folder):
        assert difference < 1e-6  # of the logarithm, in float32
        assert bytes_a_weight == 2


def stepped(ranks):
    """Weights after one optimiser step, and whether FSDP2 shards the module."""
    from tiny_training import make_actor, trajectories

    engine = make_engine(ranks)
    make_actor(engine).update(trajectories(6))
    return weights(engine), type(engine.module).__name__


def test_a_forced_group_of_one_rank_trains_through_fsdp_as_one_process_does():
    from siirl.engine.training.collectives import OneProcess

    [(grouped, kind)] = run_on_ranks(stepped, ranks=1)
    alone, plain = stepped(OneProcess())
    assert (kind, plain) == ("FSDPTinyPolicy", "TinyPolicy")
    for name, tensor in alone.items():
        torch.testing.assert_close(grouped[name], tensor, rtol=1e-6, atol=1e-7)
