"""Weights from training to rollout, and the proof that they arrived."""

import pytest
import torch
from torch import nn

from siirl.engine.collectives import OneProcess
from siirl.engine.weight_sync import WeightSync, checksum
from siirl.errors import InvariantError


class Trained:
    """The part of a TrainEngine that a weight sync uses."""

    def __init__(self, module: nn.Module, steps: int) -> None:
        self.module, self.steps = module, steps

    def upload_weights(self, receiver, version):
        receiver.receive_weights(dict(self.module.state_dict()), version)


class Acting:
    """Remembers the version that it was told."""

    version = None

    def update_weights(self, version):
        self.version = version


def linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def test_a_copy_that_acts_gets_the_trained_weights_and_their_version():
    trained, copy, engine = linear(0), linear(1), Acting()
    WeightSync(trained=Trained(trained, steps=7), acting=copy, engine=engine, ranks=OneProcess()).sync()
    assert torch.equal(copy.weight, trained.weight)
    assert engine.version == 7


def test_the_trained_module_itself_needs_no_copy():
    trained, engine = linear(0), Acting()
    sync = WeightSync(trained=Trained(trained, steps=1), acting=trained, engine=engine, ranks=OneProcess())
    sync.sync()
    assert sync.version == engine.version == 1


def test_a_sync_says_whether_optimiser_steps_left_the_weights_as_they_were():
    trained = Trained(linear(0), steps=0)
    sync = WeightSync(trained=trained, acting=linear(1), engine=Acting(), ranks=OneProcess())
    found = []
    for steps, change in [(0, 0.0), (1, 0.0), (2, 0.5), (2, 0.0)]:
        trained.steps = steps
        with torch.no_grad():
            trained.module.bias += change
        sync.sync()
        found.append(sync.unchanged)
    assert found == [False, True, False, False]


def test_weights_that_do_not_arrive_stop_the_run():
    class Deaf(nn.Linear):
        def load_state_dict(self, state, **options):
            return None

    sync = WeightSync(trained=Trained(linear(0), steps=1), acting=Deaf(3, 2), engine=Acting(), ranks=OneProcess())
    with pytest.raises(InvariantError, match="what acts is not what is trained"):
        sync.sync()


@pytest.mark.parametrize("place", [0, 5])
def test_the_checksum_sees_any_single_weight(place):
    state = {"weight": torch.zeros(6)}
    changed = {"weight": torch.zeros(6)}
    changed["weight"][place] = 1e-6
    assert checksum(state) != checksum(changed)


def test_the_checksum_sees_two_weights_that_were_exchanged():
    assert checksum({"weight": torch.tensor([1.0, 2.0])}) != checksum({"weight": torch.tensor([2.0, 1.0])})
