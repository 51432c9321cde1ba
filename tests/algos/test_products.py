"""Products of 16-bit matrices keep their sums in float32; other products are unchanged."""

import pytest
import torch

from siirl.algos.products import wide_product


def matrices(*, dtype, batch=()):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(*batch, *shape, generator=generator).to(dtype) for shape in ((5, 64), (64, 7))
    )


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_16_bit_products_are_those_of_exact_arithmetic(dtype, batch):
    left, right = matrices(dtype=dtype, batch=batch)
    found, exact = wide_product(left, right), left.double() @ right.double()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
    # what rounding would have made of them
    assert float(((left @ right).double() - exact).abs().max()) > 1e-3


def test_a_logit_that_bfloat16_cannot_represent():
    """16 times 1 and 1/32 times 1 are 16.03125; bfloat16 steps by 1/8 from 16 on."""
    left, right = (
        torch.tensor([[16.0, 1 / 32]], dtype=torch.bfloat16),
        torch.ones(2, 1, dtype=torch.bfloat16),
    )
    assert wide_product(left, right).item() == 16.03125
    assert (left @ right).item() == 16.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_products_are_those_of_torch(dtype):
    left, right = matrices(dtype=dtype)
    assert torch.equal(wide_product(left, right), left @ right)
