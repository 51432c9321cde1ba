"""Which rollout processes wait for weights, and the transfers to which they are invited.

Part of the exchange. A process asks until it is invited; training ranks invite those that wait. A
dead process is forgotten, and its replacement asks like any other. Left out: the transfer
(`siirl.dag_worker.separate.sent_weights`).
"""

from siirl.dag_worker.separate.exchange_messages import Receiver, RolloutProcess, Round


class Rounds:
    """Processes that wait for weights."""

    def __init__(self) -> None:
        self.waiting: dict[RolloutProcess, Receiver] = {}
        self._invited: dict[RolloutProcess, Round] = {}

    def ask(self, process: RolloutProcess, receiver: Receiver) -> Round | None:
        """The transfer to which `process` is invited; None: it waits from now on."""
        found = self._invited.pop(process, None)
        if found is None:
            self.waiting[process] = receiver
        return found

    def open(self, invitation: Round) -> None:
        """Invite the members of a transfer; one that died meanwhile does not come."""
        for process in invitation.members:
            if self.waiting.pop(process, None) is not None:
                self._invited[process] = invitation

    def forget(self, process: RolloutProcess) -> None:
        """Drop a process that died."""
        self.waiting.pop(process, None)
        self._invited.pop(process, None)
