"""Peak FLOP/s of GPUs from vendors' datasheets: the denominator of MFU.

Dense products on tensor cores, without sparsity, in the fastest mode that accumulates in float32. A
device that is not in the table has no MFU, but its achieved TFLOP/s are reported.
"""

from dataclasses import dataclass

import torch

TERA = 1e12


@dataclass(frozen=True)
class Peak:
    """FLOP/s of a device by type of the operands."""

    bfloat16: float
    float32: float
    """Without TF32, which PyTorch leaves off by default."""
    source: str


_H100 = "NVIDIA H100 Tensor Core GPU datasheet (bfloat16 with sparsity, halved)"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet (sparsity halved)"
_BLACKWELL = "NVIDIA Blackwell datasheet (GB200 NVL72 and HGX B200; sparsity halved)"
PEAKS: dict[str, Peak] = {
    # The first key that is part of the device's name applies, so longer keys come first.
    "GB200": Peak(2500 * TERA, 80 * TERA, _BLACKWELL),
    "B200": Peak(2250 * TERA, 75 * TERA, _BLACKWELL),
    "H100 PCIe": Peak(756 * TERA, 51 * TERA, _H100),
    "H100 NVL": Peak(835 * TERA, 60 * TERA, _H100),
    "H100": Peak(989 * TERA, 67 * TERA, _H100),
    "GH200": Peak(989 * TERA, 67 * TERA, "NVIDIA GH200 Grace Hopper datasheet (sparsity halved)"),
    "H200 NVL": Peak(835 * TERA, 60 * TERA, _H200),
    "H200": Peak(989 * TERA, 67 * TERA, _H200),
    "H800": Peak(989 * TERA, 67 * TERA, "NVIDIA H800: an H100 with slower NVLink"),
    "H20": Peak(148 * TERA, 44 * TERA, "NVIDIA H20 datasheet"),
    "A100": Peak(312 * TERA, 19.5 * TERA, "NVIDIA A100 Tensor Core GPU datasheet"),
    "A800": Peak(312 * TERA, 19.5 * TERA, "NVIDIA A800 datasheet: an A100 with slower NVLink"),
    "L40S": Peak(362 * TERA, 91.6 * TERA, "NVIDIA L40S datasheet"),
    "L40": Peak(181 * TERA, 90.5 * TERA, "NVIDIA L40 datasheet"),
    "L20": Peak(119.5 * TERA, 59.8 * TERA, "NVIDIA L20 datasheet"),
    "L4": Peak(121 * TERA, 30.3 * TERA, "NVIDIA L4 datasheet (sparsity halved)"),
}


def peak_flops(device_name: str, dtype: torch.dtype) -> float | None:
    """Peak FLOP/s of a device for operands of `dtype`; None if the table lacks it."""
    for name, peak in PEAKS.items():
        if name in device_name:
            return peak.bfloat16 if dtype == torch.bfloat16 else peak.float32
    return None


def peak_of(device: torch.device, dtype: torch.dtype) -> float | None:
    """`peak_flops` of a device of this machine; None for a CPU."""
    if device.type != "cuda":
        return None
    return peak_flops(torch.cuda.get_device_name(device), dtype)
