"""MetricWorker: collects a rank's metrics during a step and reduces them over all ranks.

The exchange between ranks is a function argument, for example torch.distributed's
all_gather_object.
"""

import logging
from collections.abc import Callable
from typing import Any

from siirl.dag_worker.metric_values import plain_record
from siirl.reporting.metric_reduction import complaints, merge_rounds, reduce_metrics
from siirl.reporting.metrics import Reduced, Value

logger = logging.getLogger(__name__)

Record = dict[str, Value]
Gather = Callable[[list[Record]], list[list[Record]]]


def only_rank(records: list[Record]) -> list[list[Record]]:
    """Exchange function of a single-rank run."""
    return [records]


class MetricWorker:
    """Collects the metrics of one step; a metric of any name or value is accepted.

    Args:
        gather: Returns the records of all ranks in rank order; every rank calls it once per step.
        warns: Whether this rank reports unusual metrics of any rank, once per name.
    """

    def __init__(self, *, gather: Gather = only_rank, warns: bool = True) -> None:
        self._gather, self._warns = gather, warns
        self._records: list[Record] = []
        self._warned: set[str] = set()
        self._warnings: list[str] = []

    def record(self, metrics: Any) -> None:
        """Keep `metrics`, a mapping from names to numbers, until the end of the step."""
        self._records.append(plain_record(metrics))

    @property
    def records(self) -> tuple[Record, ...]:
        """Values that this rank has recorded since the last `reduce`."""
        return tuple(self._records)

    def reduce(self) -> dict[str, Reduced]:
        """Reduce the step's metrics over all ranks, equal on each rank; then start empty."""
        mine, self._records = merge_rounds(self._records), []
        records = [record for rank in self._gather(mine) for record in rank]
        if self._warns:
            self._warn(complaints(records))
        return reduce_metrics(records)

    def take_warnings(self) -> tuple[str, ...]:
        """Warnings since the last call, for the terminal and the run folder."""
        warnings, self._warnings = tuple(self._warnings), []
        return warnings

    def _warn(self, sentences: dict[str, str]) -> None:
        for name, sentence in sentences.items():
            if name not in self._warned:
                logger.info(sentence)
                self._warnings.append(sentence)
        self._warned |= sentences.keys()
