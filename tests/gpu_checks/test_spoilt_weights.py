"""Weights that do not arrive, although the code that transfers them finds them equal."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import torch

from siirl.engine.training.frozen_weights import FrozenWeights
from siirl.engine.training.weight_sync import ActingModule, ChecksumPair
from siirl.gpu_checks import weight_transfer
from siirl.gpu_checks.check import CheckFailed, Trial
from siirl.gpu_checks.process_group import group_of_one
from siirl.gpu_checks.receiving_process import ReceivingProcess, mapped
from siirl.gpu_checks.sharded_weights import send_from_shards
from siirl.gpu_checks.weight_transfer import equal_checksums, to_acting_copy, to_process
from siirl.models.checksum import checksum
from siirl.models.weight_rows import Rows
from tests.gpu_checks import rank_work

SKIPPED = "model.layers.0.mlp.up_proj.weight"


def to_sharded_copy(trial: Trial) -> None:
    """`sharded_sync` on one rank, in this process."""
    with group_of_one(trial) as group:
        send_from_shards(trial, group, mapped)


take_weights = ActingModule.take_weights


def take_half_norms(module: ActingModule, weights: Iterable[Rows]) -> list[ChecksumPair]:
    """Take the weights of norms divided by two."""
    spoilt = (
        rows.with_values(rows.values / 2) if "norm" in rows.name else rows for rows in weights
    )
    return take_weights(module, spoilt)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(torch.device("cpu"), time.monotonic() + 600, tmp_path / "figures.json")


@pytest.mark.parametrize("check", [to_acting_copy, to_sharded_copy])
@pytest.mark.parametrize(
    ("owner", "method", "spoilt", "told"),
    [
        pytest.param(
            FrozenWeights,
            "names",
            lambda self, ranks: {SKIPPED},
            rf"1 of \d+ tensors of .* the first of them {SKIPPED}$",
            id="later syncs leave a weight out",
        ),
        pytest.param(
            ActingModule,
            "take_weights",
            take_half_norms,
            r"are not the trained ones, the first of them .*norm",
            id="weights change as they are copied",
        ),
    ],
)
def test_a_copy_that_differs_from_the_trained_weights_is_a_failure(
    check: Callable[[Trial], None],
    owner: type,
    method: str,
    spoilt: Callable[..., object],
    told: str,
    trial: Trial,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, method, spoilt)
    with pytest.raises(CheckFailed, match=told):
        check(trial)


def test_a_bucket_that_changes_on_its_way_to_a_process_is_a_failure(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChecksumPair, "agrees", True)
    spoilt = partial(ReceivingProcess, transport=rank_work.SpoiltBucket)
    monkeypatch.setattr(weight_transfer, "ReceivingProcess", spoilt)
    with pytest.raises(CheckFailed, match=r"^weights with the checksum \d+ were sent, but \d+"):
        to_process(trial)


def same(tensors: dict[str, torch.Tensor]) -> int:
    return 7


def without_low_bits(tensors: dict[str, torch.Tensor]) -> int:
    """Leaves out the low byte of each entry."""
    return checksum(
        {
            name: (tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32) & ~0xFF)
            for name, tensor in tensors.items()
        }
    )


def with_places_in_order(tensors: dict[str, torch.Tensor]) -> int:
    """Multiplies the bits of entry i by 2 i + 1: 2**20 of them add up to a multiple of 2**40."""
    total = 0
    for tensor in tensors.values():
        bits_N = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32).flatten()
        total += int((bits_N.long() * torch.arange(1, 2 * len(bits_N), 2)).sum())
    return total % 2**63


@pytest.mark.parametrize(
    ("spoilt", "what"),
    [
        (same, "all were doubled"),
        (without_low_bits, "bit 0 of one"),
        (with_places_in_order, "all were doubled"),
    ],
)
def test_a_checksum_that_leaves_out_a_part_of_the_bits_is_a_failure(
    spoilt: Callable[[dict[str, torch.Tensor]], int],
    what: str,
    trial: Trial,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_transfer, "checksum", spoilt)
    with pytest.raises(
        CheckFailed, match=rf"^the checksum of torch.float32 weights stays although {what}"
    ):
        equal_checksums(trial)
