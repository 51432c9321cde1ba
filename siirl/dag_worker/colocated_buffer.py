"""Buffers of a graph whose nodes all run on the same ranks: rows pass through the DataCoordinator.

A PUT_TO_BUFFER node stores its rows. The GET_FROM_BUFFER node of the same name (`config: {buffer:
NAME}`) gets this rank's share of the rows of all ranks, balanced by work. On one rank that is the
rows themselves. Left out: buffers between resource groups.
"""

from tensordict import TensorDict

from siirl.data_coordinator.redistribution import Redistribution
from siirl.errors import ConfigError


class ColocatedBuffer:
    """Buffers by name, of one rank.

    Args:
        redistribution: Divides the rows among the ranks.
    """

    def __init__(self, redistribution: Redistribution) -> None:
        self.redistribution = redistribution
        self._waiting: dict[str, TensorDict] = {}

    def put(self, batch: TensorDict, *, buffer: str) -> None:
        """Store this rank's rows.

        Raises:
            ConfigError: Earlier rows have not been taken.
        """
        if buffer in self._waiting:
            raise ConfigError(
                f"Buffer {buffer!r} receives rows twice before a GET_FROM_BUFFER node takes them. "
                "Give one of the two nodes another name: config: {buffer: NAME}."
            )
        self._waiting[buffer] = batch

    def take(self, *, buffer: str, step: int) -> TensorDict:
        """This rank's share of the rows of all ranks; every rank calls it.

        Raises:
            ConfigError: The buffer is empty.
        """
        if buffer not in self._waiting:
            raise ConfigError(
                f"Buffer {buffer!r} is empty: no PUT_TO_BUFFER node of this name runs before the "
                "GET_FROM_BUFFER node."
            )
        batch = self._waiting.pop(buffer)
        return self.redistribution.redistribute(batch, node=f"buffer {buffer}", step=step)
