"""Matrix products whose sums are not rounded to 16 bits.

Two programs that act and train in bfloat16 differ in the order of their sums; a sum rounded to 8
bits of mantissa makes that visible. A logit between 16 and 32 moves in steps of 1/8 then, and
log-probs with it. The product of two 16-bit numbers is exact in float32, so it is enough to keep
the sum, which on a GPU costs nothing: MiniMax-M1 (arXiv 2506.13585) and ScaleRL (arXiv 2510.13786)
have such a head.
"""

import torch

HALVES = (torch.bfloat16, torch.float16)


def wide_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`left @ right` of two matrices or two batches of them, in float32 where they are in 16 bits.

    Call it outside of autocast, which would round; in 16 bits it has no gradient of its own.
    """
    if left.dtype not in HALVES:
        return left @ right
    if left.is_cuda:
        return (torch.mm if left.ndim == 2 else torch.bmm)(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
