"""Rows as bytes: unpacking inverts packing for all dtypes."""

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from siirl.data_coordinator.row_transport import ALIGNMENT, pack, unpack


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.float64]
)
def test_a_column_arrives_as_it_was(dtype):
    column = torch.arange(6).reshape(2, 3).to(dtype)
    (arrived,) = unpack(pack(TensorDict({"x": column}, batch_size=[2]))).values()
    assert arrived.dtype is dtype and torch.equal(arrived, column)


def test_columns_of_any_width_stand_side_by_side_with_strings():
    batch = TensorDict(
        {
            "uid": NonTensorStack("ä", "\ud800"),
            "flags": torch.tensor([True, False]),
            "images": torch.arange(2 * 5, dtype=torch.uint8).reshape(2, 5),
            "empty": torch.zeros(2, 0),
            "seed": torch.tensor([2**62, -1]),
        },
        batch_size=[2],
    )
    packed = pack(batch)
    arrived = unpack(packed)
    assert len(packed) % ALIGNMENT == 0
    assert arrived.get("uid").tolist() == ["ä", "\ud800"]
    for name in ("flags", "images", "empty", "seed"):
        assert torch.equal(arrived[name], batch[name])


def test_a_view_is_packed_without_the_rest_of_its_storage():
    rows = torch.zeros(1000, 1000, dtype=torch.uint8)
    assert len(pack(TensorDict({"x": rows[:2, :8]}, batch_size=[2]))) < 500
