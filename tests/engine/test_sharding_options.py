"""Options of sharding and offloading: the same weights after two steps, and the place of
tensors.
"""

import pytest
import torch
from knocking import knocked_at, ports
from psutil import Process
from ranks_at_work import run_on_ranks
from tiny_training import largest_difference, make_actor, make_engine, trajectories, weights
from torch import distributed
from torch.distributed.tensor import DTensor

from siirl.engine.training.collectives import TIMEOUT, OneProcess
from siirl.engine.training.offload import OffloadedTensors, powers_of_two
from siirl.engine.training.sharding import Sharding
from siirl.errors import ConfigError

ROWS = 8
OPTIONS = {
    "as shipped": {},
    "whole weights kept": {"sharding": Sharding(reshard_after_forward=False)},
    "reduced once": {"sharding": Sharding(reduce_once=True)},
    "two copies": {"sharding": Sharding(shard_ranks=2)},
    "a copy a rank": {"sharding": Sharding(shard_ranks=1, reduce_once=True)},
    "moments on the host": {"offload": True},
}


def share(ranks):
    return trajectories(ROWS)[ranks.rank :: ranks.size]


def trained(ranks, folder):
    found = {}
    for name, options in OPTIONS.items():
        engine = make_engine(ranks, micro_batch_size=1, **options)
        for _ in range(2):
            make_actor(engine).update(share(ranks))
        engine.save(folder / name)
        found[name] = weights(engine)
        resumed = make_engine(ranks, micro_batch_size=1, **options)
        resumed.load(folder / name)
        for each in (engine, resumed):
            make_actor(each).update(share(ranks))
        assert largest_difference(weights(engine), weights(resumed)) == 0.0, name
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return trained(OneProcess(), tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def on_four(tmp_path_factory):
    return run_on_ranks(trained, tmp_path_factory.mktemp("four"), ranks=4)


@pytest.mark.parametrize("name", OPTIONS)
def test_four_ranks_reach_the_weights_of_one_with_every_option(alone, on_four, name):
    for rank in on_four:
        assert largest_difference(alone["as shipped"], rank[name]) < 1e-5


def test_moments_on_the_host_change_no_bit(alone):
    assert largest_difference(alone["as shipped"], alone["moments on the host"]) == 0.0


def test_optimiser_moments_are_offloaded_between_steps():
    engine = make_engine(offload=True)
    make_actor(engine).update(trajectories(ROWS))
    for state in engine.optimizer.state.values():
        assert state["exp_avg"].untyped_storage().nbytes() == 0


def test_an_offloaded_reference_scores_the_same():
    here, away = make_engine(optim=None), make_engine(optim=None, offload=True)
    assert all(weight.untyped_storage().nbytes() == 0 for weight in away.module.parameters())
    scored = [
        engine.forward(trajectories(ROWS), lambda scores, _: scores.log_probs_BT)
        for engine in (here, away)
    ]
    assert torch.equal(*scored)


def test_views_of_a_storage_come_back_together():
    whole = torch.arange(6.0)
    part = whole[2:4]
    idle = OffloadedTensors(lambda: [whole, part])
    idle.leave()
    with idle.resident(), idle.resident():
        assert part.tolist() == [2.0, 3.0]
    assert whole.untyped_storage().nbytes() == 0


def test_a_matrix_of_qwen_7b_takes_no_more_host_memory_than_it_has():
    """18,944 x 3,584 entries of float32 are 259 MiB, which PyTorch alone would round to 512."""
    mib = 1 << 20
    assert powers_of_two(18_944 * 3_584 * 4) == [256 * mib, 2 * mib, mib]
    assert powers_of_two(3 * mib + 5) == [2 * mib, mib, 5]
    assert powers_of_two(7) == [7]


def test_tensors_offloaded_in_parts_are_restored_whole():
    numbers = torch.arange(400_000.0)  # 1.5 MiB: 1 MiB and a rest
    idle = OffloadedTensors(lambda: [numbers])
    idle.leave()
    with idle.resident():
        assert torch.equal(numbers, torch.arange(400_000.0))


def layout(ranks):
    engine = make_engine(ranks, sharding=Sharding(shard_ranks=2))
    weight = next(iter(engine.module.parameters()))
    assert isinstance(weight, DTensor)
    return weight.device_mesh.mesh.tolist()


def test_neighbouring_ranks_share_a_copy():
    assert run_on_ranks(layout, ranks=4)[0] == [[0, 1], [2, 3]]


def groups_of_two_engines(ranks):
    for _ in range(2):
        engine = make_engine(ranks, sharding=Sharding(shard_ranks=2))
    mesh = next(iter(engine.module.parameters())).device_mesh
    cpu = torch.device("cpu")
    limits = {
        mesh.get_group(axis)._get_backend(cpu).options._timeout for axis in mesh.mesh_dim_names
    }
    return len(distributed.distributed_c10d._world.pg_map), limits, knocked_at(ports(Process()))


def test_engines_share_groups_that_wait_as_long_as_the_ranks_and_whose_ports_are_closed():
    for groups, limits, knocked in run_on_ranks(groups_of_two_engines, ranks=4):
        assert groups == 3  # all ranks, and one group of each axis
        assert limits == {TIMEOUT}
        assert {opens for _, opens in knocked} == {False}


def uneven(ranks):
    with pytest.raises(ConfigError, match="fsdp_size=2 must divide the 3 ranks"):
        make_engine(ranks, sharding=Sharding(shard_ranks=2))


def test_copies_of_different_size_are_refused():
    run_on_ranks(uneven, ranks=3)
