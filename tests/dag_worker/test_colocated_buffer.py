"""Rows pass from a PUT_TO_BUFFER node to the GET_FROM_BUFFER node, through the redistribution."""

import pytest
import torch
from tensordict import TensorDict

from siirl.dag_worker.colocated_buffer import ColocatedBuffer
from siirl.data_coordinator.redistribution import StayOnRank
from siirl.errors import ConfigError


class Reversed(StayOnRank):
    """Returns the rows in reverse order, and records their buffer."""

    def redistribute(self, batch, *, node, step):
        self.asked = (node, step)
        return batch[torch.arange(len(batch)).flip(0)]


def rows(*values):
    return TensorDict({"x": torch.tensor(values)}, batch_size=[len(values)])


def test_a_buffered_batch_is_taken_once():
    buffer = ColocatedBuffer(StayOnRank())
    buffer.put(rows(1, 2), buffer="a")
    buffer.put(rows(3), buffer="b")
    assert buffer.take(buffer="b", step=1)["x"].tolist() == [3]
    assert buffer.take(buffer="a", step=1)["x"].tolist() == [1, 2]
    with pytest.raises(ConfigError, match="Buffer 'a' is empty"):
        buffer.take(buffer="a", step=1)


def test_rows_go_through_the_redistribution_under_the_buffers_name():
    redistribution = Reversed()
    buffer = ColocatedBuffer(redistribution)
    buffer.put(rows(1, 2), buffer="a")
    assert buffer.take(buffer="a", step=7)["x"].tolist() == [2, 1]
    assert redistribution.asked == ("buffer a", 7)


def test_putting_twice_is_refused():
    buffer = ColocatedBuffer(StayOnRank())
    buffer.put(rows(1), buffer="a")
    with pytest.raises(ConfigError, match="receives rows twice"):
        buffer.put(rows(2), buffer="a")
