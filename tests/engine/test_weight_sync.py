"""Transfer of weights from training to rollout, and the check of their arrival."""

from types import SimpleNamespace

import pytest
import torch
from ranks_at_work import run_on_ranks
from tiny_policies import Trained, half_frozen
from tiny_training import make_engine
from torch import nn

from siirl.dag_worker.stages import sync_weights
from siirl.engine.training import frozen_weights
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.weight_sync import ChecksumPair, WeightSync
from siirl.errors import InvariantError
from siirl.models.checksum import RunningChecksum


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


class Losing:
    """An engine with its own weights, which may refuse or lose them."""

    def __init__(self):
        self.weight_dtypes = {}
        self.taken, self.has, self.refuses = 0, True, False

    def has_weights(self):
        return self.has

    def take_weights(self, weights):
        value = RunningChecksum(weights).value
        self.taken += 1
        self.has = not self.refuses
        return None if self.refuses else [ChecksumPair(trained=value, acting=value)]


def test_a_step_without_an_update_sends_no_weights():
    trained, engine = Trained(linear(0), steps=0), Losing()
    sync = WeightSync(trained=trained, acting=engine, engine=Acting(), ranks=OneProcess())
    sync.sync()  # of the start
    sent = []
    for steps in (0, 1, 1):
        trained.steps = steps
        found = sync_weights(batch=None, context=SimpleNamespace(weights=sync))
        sent.append((engine.taken, found.metrics["sync/bytes"]))
    assert sent == [(1, 0), (2, 8 * 4), (2, 0)]


def test_an_engine_that_lost_or_refused_its_weights_gets_them_again_without_an_update():
    trained, engine = Trained(linear(0), steps=3), Losing()
    sync = WeightSync(trained=trained, acting=engine, engine=Acting(), ranks=OneProcess())
    sync.end_step()  # never sent before
    engine.has = False  # restarted
    sync.end_step()
    assert engine.taken == 2
    engine.has, engine.refuses = False, True
    sync.end_step()
    engine.has = True
    sync.end_step()  # the last attempt did not arrive
    assert engine.taken == 4


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


def test_frozen_weights_are_sent_to_a_copy_once():
    trained, copy = half_frozen(), half_frozen(seed=1)
    sync = WeightSync(trained=Trained(trained), acting=copy, engine=Acting(), ranks=OneProcess())
    sent = []
    for _ in range(3):
        with torch.no_grad():
            trained[1].weight += 1
            trained.scale += 1
        sync.sync()
        sent.append(sync.transferred_bytes)
        assert all(
            torch.equal(copy.state_dict()[name], each)
            for name, each in trained.state_dict().items()
        )
    assert sent == [26 * 4, 14 * 4, 14 * 4]


@pytest.mark.parametrize(
    "write", [lambda weight: weight[-1:].mul_(2), lambda weight: weight.data.mul_(2)]
)
def test_a_frozen_weight_that_its_module_changes_is_sent_again(write, monkeypatch):
    monkeypatch.setattr(frozen_weights, "SAMPLED", 1)  # of the first entry only
    trained, copy = half_frozen(), half_frozen(seed=1)
    sync = WeightSync(trained=Trained(trained), acting=copy, engine=Acting(), ranks=OneProcess())
    for _ in range(2):
        sync.sync()
        write(trained[0].weight)
    sync.sync()
    assert torch.equal(copy[0].weight, trained[0].weight)


def test_a_frozen_weight_that_changes_and_changes_back_is_sent_each_time():
    trained, copy = half_frozen(), half_frozen(seed=1)
    sync = WeightSync(trained=Trained(trained), acting=copy, engine=Acting(), ranks=OneProcess())
    for factor in (1.0, 2.0, 0.5, 1.0):
        trained[0].weight.data.mul_(factor)  # not counted by torch
        sync.sync()
        assert torch.equal(copy[0].weight, trained[0].weight)


def test_a_tied_frozen_weight_is_sent_once_under_both_of_its_names():
    trained, copy = tied(), tied()
    sync = WeightSync(trained=Trained(trained), acting=copy, engine=Acting(), ranks=OneProcess())
    sent = []
    for _ in range(2):
        sync.sync()
        sent.append(sync.transferred_bytes)
    assert sent == [2 * 12 * 4 + 4 * 4, 4 * 4]  # both names, and the trained bias


def tied() -> nn.Module:
    """An embedding that is the frozen head, too, whose bias is trained."""
    module = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4)})
    module["head"].weight = module["embedding"].weight.requires_grad_(False)
    return module


def test_a_copy_whose_frozen_weights_change_by_themselves_stops_the_run():
    copy = half_frozen(seed=1)
    sync = WeightSync(
        trained=Trained(half_frozen()), acting=copy, engine=Acting(), ranks=OneProcess()
    )
    sync.sync()
    copy[0].weight.mul_(2)
    with pytest.raises(InvariantError, match="acting weights are not the trained ones"):
        sync.sync()


def synced_twice(ranks):
    """Bytes of two syncs of a sharded policy to copies in bfloat16, and the copies' weights."""
    copy = half_frozen(seed=1).to(torch.bfloat16)
    engine = make_engine(ranks, module=half_frozen())
    sync = WeightSync(trained=engine, acting=copy, engine=Acting(), ranks=ranks)
    sent = []
    for _ in range(2):
        with torch.no_grad():
            engine.module[1].weight += 1
        sync.sync()
        sent.append(sync.transferred_bytes)
    return sent, copy.state_dict(), engine.upload_weights()


def write_to_the_part_of_rank_1(weight, rank):
    if rank == 1:
        weight.to_local()[:, 1:].mul_(2)


def write_to_the_parts_of_all_ranks(weight, rank):
    weight[:, 1:].mul_(2)


def synced_around(ranks, write):
    """Frozen weights before a write to a sharded one, after it, and in a copy that was synced
    before and after it.
    """
    frozen_weights.SAMPLED = 1  # of the first entry only, in the process of this rank
    copy, engine = half_frozen(seed=1), make_engine(ranks, module=half_frozen())
    sync = WeightSync(trained=engine, acting=copy, engine=Acting(), ranks=ranks)
    sync.sync()
    before = copy[0].weight.clone()
    write(engine.module[0].weight, ranks.rank)
    sync.sync()
    return before, engine.upload_weights()["0.weight"], copy[0].weight


@pytest.mark.parametrize("write", [write_to_the_part_of_rank_1, write_to_the_parts_of_all_ranks])
def test_a_write_to_a_sharded_frozen_weight_reaches_all_copies(write):
    for before, after, acting in run_on_ranks(synced_around, write, ranks=2):
        assert not torch.equal(before, after)
        assert torch.equal(acting, after)


def test_sharded_weights_reach_the_copies_of_all_ranks_in_their_type():
    for sent, acting, trained in run_on_ranks(synced_twice, ranks=2):
        assert sent == [26 * 2, 14 * 2]
        assert all(torch.equal(acting[name], trained[name].bfloat16()) for name in trained)
