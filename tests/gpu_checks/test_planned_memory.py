"""The plan's memory of an update beside its peak."""

from pathlib import Path

import pytest
import torch

from siirl.algos.linear_log_probs import BLOCK_ELEMENTS
from siirl.gpu_checks.check import CheckFailed, Trial
from siirl.gpu_checks.planned_memory import compare_with_peak, planned_bytes
from siirl.params.data_args import DataArguments
from siirl.params.model_args import ModelArguments
from siirl.preflight.model_shapes import decoder_shape

GIGABYTE = 1_000_000_000


class TakingTenGigabytes(Trial):
    """A check whose update took 10 GB."""

    def peak_bytes(self) -> int:
        return 10 * GIGABYTE


def trial(folder: Path) -> Trial:
    return TakingTenGigabytes(torch.device("cpu"), ends_at=0.0, file=folder / "figures.json")


def test_fifteen_percent_too_much_is_right(tmp_path: Path) -> None:
    checked = trial(tmp_path)
    compare_with_peak(checked, 11.5 * GIGABYTE)
    assert checked.figures == {
        "planned_gb": 11.5,
        "peak_gb": 10.0,
        "plan_error_percent": pytest.approx(15.0),
    }


@pytest.mark.parametrize(("planned", "error"), [(8.4, "-16%"), (11.7, r"\+17%")])
def test_more_is_a_failure_with_both_numbers(tmp_path: Path, planned: float, error: str) -> None:
    with pytest.raises(CheckFailed, match=rf"{planned} GB .* took 10.0 GB \({error}; at most 15%"):
        compare_with_peak(trial(tmp_path), planned * GIGABYTE)


def test_an_update_has_weights_gradients_moments_and_activations() -> None:
    """A million weights in float32 have 16 bytes each, and those of the head 4 more; a block of
    logits and its probabilities have 8 bytes an entry; activations of one token are little.
    """
    shape = decoder_shape(
        {
            **{"model_type": "llama", "vocab_size": 1000, "hidden_size": 256},
            **{"intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4},
        }
    )
    assert shape is not None
    assert shape.parameters == 2 * 256_000 + 4 * 65_536 + 3 * 131_072 + 3 * 256
    model = ModelArguments(dtype="float32")
    data = DataArguments(max_prompt_length=1, max_response_length=1)
    logits = 8 * BLOCK_ELEMENTS + 4 * 256_000
    activations = planned_bytes(shape, model, data=data) - 16 * shape.parameters - logits
    assert 2 * 256 * 4 < activations < 100_000
