"""The tally of losses over micro-batches."""

import torch

from siirl.engine.training.batch_loss import LossSum, LossTally


def test_numbers_with_one_entry_of_any_type_are_added():
    tally = LossTally()
    for number in (1, 2):
        tally.add(
            LossSum(
                loss=torch.tensor(float(number)),
                sums={"tokens": torch.tensor([number])},
                maxima={"gap": torch.tensor([[0.5 * number]])},
            ),
            counts=True,
        )
    assert (tally.loss, tally.sums, tally.maxima) == (3.0, {"tokens": 3.0}, {"gap": 1.0})
