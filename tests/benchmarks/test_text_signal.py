"""The share of a batch's gradient that is signal."""

import pytest
import torch

from benchmarks.text_signal import signal_share, table


@pytest.mark.parametrize(
    ("gradients", "share"),
    [
        ([[3.0, 4.0], [3.0, 4.0]], 1.0),
        ([[1.0, 0.0], [0.0, 1.0]], 0.0),
        ([[2.0, 1.0], [2.0, -1.0]], 3 / 5),  # product 4 - 1, squares 4 + 1
    ],
)
def test_signal_is_what_independent_gradients_share(
    gradients: list[list[float]], share: float
) -> None:
    assert signal_share(torch.tensor(gradients)) == pytest.approx(share)


def test_a_start_without_signal_has_no_noise_scale() -> None:
    start = {"start": "plateau", "sampled": {"sums-3": 0.2}, "mixed_groups": 0.6}
    lines = table([{**start, "signal": -0.01, "noise_scale": None}]).splitlines()
    assert lines[-1] == "| plateau | sums-3 20% | 60% | -1.0% | - |"
