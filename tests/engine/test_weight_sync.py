"""Transfer of weights from training to rollout, and the check of their arrival."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.weight_sync import WeightSync, checksum
from siirl.errors import InvariantError


class Trained:
    """The part of a TrainEngine that a weight sync uses."""

    def __init__(self, module: nn.Module, steps: int) -> None:
        self.module, self.steps = module, steps

    def weights_in_turn(self):
        return iter(self.module.state_dict().items())


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
        def state_dict(self, **options):
            return {name: tensor.clone() for name, tensor in super().state_dict().items()}

    sync = WeightSync(
        trained=Trained(linear(0), steps=1), acting=Deaf(3, 2), engine=Acting(), ranks=OneProcess()
    )
    with pytest.raises(InvariantError, match="acting weights are not the trained ones"):
        sync.sync()


@pytest.mark.parametrize("place", [0, 5])
def test_the_checksum_sees_any_single_weight(place):
    state = {"weight": torch.zeros(6)}
    changed = {"weight": torch.zeros(6)}
    changed["weight"][place] = 1e-6
    assert checksum(state) != checksum(changed)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool]
)
def test_the_checksum_is_that_of_the_raw_bits(dtype):
    ones = {"weight": torch.ones(2, dtype=dtype)}
    bits = {
        torch.float64: 0x3FF0 << 48,
        torch.float32: 0x3F80 << 16,
        torch.bfloat16: 0x3F80,
        torch.int64: 1,
        torch.bool: 1,
    }[dtype]
    assert checksum(ones) == (1 + 3) * bits % (1 << 63)  # entry 0 counts once, entry 1 three times


def test_the_checksum_depends_on_neither_threads_nor_memory_layout():
    """A float sum differed between one and two threads from 10,000 entries on."""
    weight = torch.randn(1000, 5000, generator=torch.Generator().manual_seed(0))
    threads, found = torch.get_num_threads(), set()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            found |= {
                checksum({"weight": weight}),
                checksum({"weight": weight.t().contiguous().t()}),
            }
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(0, 31))
def test_the_checksum_sees_any_single_bit(place, bit):
    bits = torch.arange(100, dtype=torch.int32) * 0x01010101
    changed = bits.clone()
    changed[place] ^= -(2**31) if bit == 31 else 2**bit
    assert checksum({"weight": bits.view(torch.float32)}) != checksum(
        {"weight": changed.view(torch.float32)}
    )


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
def test_a_single_weight_that_is_not_finite_is_seen(number):
    trained = linear(0)
    with torch.no_grad():
        trained.weight[1, 2] = number
    sync = WeightSync(
        trained=Trained(trained, steps=3), acting=linear(1), engine=Acting(), ranks=OneProcess()
    )
    with pytest.raises(InvariantError, match="not finite"):
        sync.sync()


def test_a_tensor_without_entries_has_a_checksum():
    assert checksum({"empty": torch.zeros(0, 3)}) == 0


def test_the_checksum_sees_two_weights_that_were_exchanged():
    assert checksum({"weight": torch.tensor([1.0, 2.0])}) != checksum(
        {"weight": torch.tensor([2.0, 1.0])}
    )
