"""The cores of a machine: simulators use them during episodes, the rank's own passes
afterwards.
"""

import pytest
import torch

from envs.base import FrameRequest
from envs.registry import env_spec
from siirl.engine.rollout.vla.embodied_rollout import EmbodiedRollout
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.env_server.pool import EnvPool
from siirl.models.policy_loader import build_policy

CARTPOLE = {"id": "CartPole-v1"}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_policy_acts_on_one_thread_and_trains_on_all(two_threads):
    policy = build_policy(
        "tiny_vla", path=None, spec=env_spec("gymnasium", **CARTPOLE), seed=0, options={"width": 8}
    )
    acted_on = []
    policy.register_forward_hook(lambda *_: acted_on.append(torch.get_num_threads()))
    rollout = EmbodiedRollout(
        policy=policy,
        pool=EnvPool("gymnasium", CARTPOLE),
        encoder=None,
        frame_every=1,
        recorder=FrameRequest(every=1, size=32),
    )
    rollout.start()
    request = EpisodeRequest(
        uid="u", group_id=0, task="CartPole-v1", task_id=0, trial_id=0, seed=0, policy_seed=(0,)
    )
    result, stats = rollout.generate([request])
    rollout.close()
    assert len(result.trajectories) == 1
    assert len(acted_on) == stats["policy_forward_passes"] > 0
    assert set(acted_on) == {1}
    assert torch.get_num_threads() == 2
