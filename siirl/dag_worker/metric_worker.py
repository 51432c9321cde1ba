"""MetricWorker: what the stages of one rank record during a step, and the step's metrics over all ranks.

Plain Python: the exchange between ranks is a function that is handed in, for example torch.distributed's all_gather_object.
"""

from collections.abc import Callable, Mapping

from siirl.dag_worker.metrics import Reduced, Value, check_value, merge_rounds, reduce_metrics

Record = dict[str, Value]
Gather = Callable[[list[Record]], list[list[Record]]]


def only_rank(records: list[Record]) -> list[list[Record]]:
    """The exchange of a run with one rank."""
    return [records]


class MetricWorker:
    """Collects the metrics of one step.

    Args:
        gather: Takes the records of this rank and returns those of all ranks, in order of rank; every rank calls it once a step.
    """

    def __init__(self, *, gather: Gather = only_rank) -> None:
        self._gather = gather
        self._records: list[Record] = []

    def record(self, metrics: Mapping[str, Value]) -> None:
        """Keep `metrics` for the end of the step; refused here, where the stage that made them is on the stack.

        Raises:
            UnknownNameError: A name that is not declared.
            TypeError: A value of another kind than its reduction takes.
        """
        for name, value in metrics.items():
            check_value(name, value)
        self._records.append(dict(metrics))

    def reduce(self) -> dict[str, Reduced]:
        """The metrics of the step over all ranks, the same on every rank; the next step starts empty."""
        records, self._records = merge_rounds(self._records), []
        return reduce_metrics(record for rank in self._gather(records) for record in rank)
