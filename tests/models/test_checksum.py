"""The checksum of weights: it depends on every bit, and not on order, threads or cuts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siirl.models.checksum import RunningChecksum, checksum
from siirl.models.weight_rows import in_rows


@pytest.mark.parametrize("place", [0, 5])
def test_the_checksum_sees_any_single_weight(place):
    state = {"weight": torch.zeros(6)}
    changed = {"weight": torch.zeros(6)}
    changed["weight"][place] = 1e-6
    assert checksum(state) != checksum(changed)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.float64, torch.int64),
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int16),
        (torch.bool, torch.int8),
    ],
)
def test_the_checksum_is_that_of_the_raw_bits(dtype, bits):
    values = torch.tensor([0.0, -1.0, 1.0, 3.0]).to(dtype)
    assert checksum({"weight": values}) == checksum({"weight": values.view(bits)})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (1024, 1024), (2048, 1024), (3, 1024, 1024)])
@pytest.mark.parametrize("factor", [2.0, 0.5, 4.0, -1.0])
def test_the_checksum_sees_a_tensor_that_was_scaled(dtype, shape, factor):
    """A sum over ranks in place of their mean scales by a power of two, which changes the bits of
    all entries by the same number.
    """
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    weight = torch.where(weight == 0, 1.0, weight).to(dtype)
    ones = torch.ones_like(weight)
    for each in (weight, ones):
        assert checksum({"weight": each}) != checksum({"weight": factor * each})


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


def test_a_tensor_without_entries_has_a_checksum():
    assert checksum({"empty": torch.zeros(0, 3)}) == 0


def test_the_checksum_sees_two_weights_that_were_exchanged():
    assert checksum({"weight": torch.tensor([1.0, 2.0])}) != checksum(
        {"weight": torch.tensor([2.0, 1.0])}
    )


def test_the_checksum_sees_two_names_that_were_exchanged():
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assert checksum({"a": one, "b": two}) != checksum({"a": two, "b": one})


def test_the_checksum_sees_that_a_weight_of_zeros_is_missing():
    assert checksum({"a": torch.ones(1), "b": torch.zeros(1)}) != checksum({"a": torch.ones(1)})


@pytest.mark.parametrize("most_bytes", [1, 24, 100, 1 << 20])
def test_the_checksum_depends_on_neither_order_nor_cut(most_bytes):
    generator = torch.Generator().manual_seed(0)
    weights = {
        "a": torch.randn(7, 3, generator=generator),
        "b": torch.randn(5, 2, 2, generator=generator).bfloat16(),
        "c": torch.tensor(2.5),
        "d": torch.arange(9),
        "e": torch.zeros(0, 3),
    }
    parts = list(in_rows(weights.items(), most_bytes=most_bytes))
    assert RunningChecksum(reversed(parts)).value == checksum(weights)


BLOCK = 1 << 21  # entries after which the numbers of the places repeat


@pytest.mark.parametrize(
    ("one", "other"), [(0, BLOCK), (1, BLOCK), (1, BLOCK + 1), (BLOCK - 1, BLOCK)]
)
def test_the_checksum_sees_entries_of_two_blocks_that_were_exchanged(one, other):
    weight = torch.zeros(BLOCK + 2)
    weight[one], weight[other] = 1.0, 2.0
    exchanged = torch.zeros(BLOCK + 2)
    exchanged[one], exchanged[other] = 2.0, 1.0
    assert checksum({"weight": weight}) != checksum({"weight": exchanged})


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("values", [[0], [-1], [-1, -1], [0, -1], [7, -8]])
def test_the_checksum_sees_complements_and_entries_whose_bits_are_all_ones(dtype, values):
    weight = torch.tensor(values, dtype=dtype)
    found = {checksum({"weight": each}) for each in (weight, ~weight, weight[:-1], weight[:0])}
    assert len(found) == len({(*values,), (*(~weight).tolist(),), (*values[:-1],), ()})


def test_entries_of_a_large_part_count_from_their_own_places():
    weight = torch.randn(3, 300_000, generator=torch.Generator().manual_seed(0))
    parts = in_rows([("weight", weight)], most_bytes=1_200_000)
    assert RunningChecksum(parts).value == checksum({"weight": weight})
