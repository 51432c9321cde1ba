"""Transfer of weights from training to rollout, and the check of their arrival."""

import pytest
import torch
from torch import nn

from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.weight_sync import WeightSync
from siirl.errors import InvariantError
from siirl.models.weight_rows import in_rows


class Trained:
    """The part of a TrainEngine that a weight sync uses."""

    def __init__(self, module: nn.Module, steps: int) -> None:
        self.module, self.steps = module, steps

    def weights_in_turn(self):
        return in_rows(self.module.state_dict().items())


class Acting:
    """Records the version that a sync sets."""

    version = None

    def update_weights(self, version):
        self.version = version


def linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def test_a_copy_that_acts_gets_the_trained_weights_and_their_version():
    trained, copy, engine = linear(0), linear(1), Acting()
    WeightSync(
        trained=Trained(trained, steps=7), acting=copy, engine=engine, ranks=OneProcess()
    ).sync()
    assert torch.equal(copy.weight, trained.weight)
    assert engine.version == 7


def test_the_trained_module_itself_needs_no_copy():
    trained, engine = linear(0), Acting()
    sync = WeightSync(
        trained=Trained(trained, steps=1), acting=trained, engine=engine, ranks=OneProcess()
    )
    sync.sync()
    assert sync.version == engine.version == 1


def test_a_sync_reports_whether_optimiser_steps_changed_the_weights():
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
        def state_dict(self, **options):
            return {name: tensor.clone() for name, tensor in super().state_dict().items()}

    sync = WeightSync(
        trained=Trained(linear(0), steps=1), acting=Deaf(3, 2), engine=Acting(), ranks=OneProcess()
    )
    with pytest.raises(InvariantError, match="acting weights are not the trained ones"):
        sync.sync()


def test_weights_that_are_not_finite_stop_the_run():
    trained = linear(0)
    with torch.no_grad():
        trained.weight[0, 0] = float("nan")
    sync = WeightSync(
        trained=Trained(trained, steps=3), acting=linear(1), engine=Acting(), ranks=OneProcess()
    )
    with pytest.raises(InvariantError, match="not finite after 3 updates"):
        sync.sync()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_single_weight_that_is_not_finite_is_detected(number):
    trained = linear(0)
    with torch.no_grad():
        trained.weight[1, 2] = number
    sync = WeightSync(
        trained=Trained(trained, steps=3), acting=linear(1), engine=Acting(), ranks=OneProcess()
    )
    with pytest.raises(InvariantError, match="not finite"):
        sync.sync()
