"""Matrix products in 16-bit dtypes with float32 sums.

A program that acts and one that trains in bfloat16 sum in different orders. Rounded to 8 bits of
mantissa, a logit between 16 and 32 changes in steps of 1/8, and so do log-probs. The product of two
16-bit numbers is exact in float32, so keeping the sum in float32 suffices, at no cost on a GPU.
MiniMax-M1 (arXiv 2506.13585) and ScaleRL (arXiv 2510.13786) have such a head.
"""

import torch

HALVES = (torch.bfloat16, torch.float16)


def wide_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`left @ right` of two matrices or two batches of them, in float32 if they are 16-bit.

    Call it outside of autocast, which would round. Not differentiable for 16-bit inputs.
    """
    if left.dtype not in HALVES:
        return left @ right
    if left.is_cuda:
        return (torch.mm if left.ndim == 2 else torch.bmm)(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
