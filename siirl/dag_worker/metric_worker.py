"""MetricWorker: what the stages of one rank record during a step, and the step's metrics over all
ranks.

The exchange between ranks is a function that is handed in, for example torch.distributed's
all_gather_object.
"""

import logging
from collections.abc import Callable
from typing import Any

from siirl.dag_worker.metric_values import plain_record
from siirl.reporting.metrics import Reduced, Value, complaints, merge_rounds, reduce_metrics

logger = logging.getLogger(__name__)

Record = dict[str, Value]
Gather = Callable[[list[Record]], list[list[Record]]]


def only_rank(records: list[Record]) -> list[list[Record]]:
    """The exchange of a run with one rank."""
    return [records]


class MetricWorker:
    """Collects the metrics of one step. Metrics of any name and value are taken: a curve is not
    worth a run.

    Args:
        gather: Takes the records of this rank and returns those of all ranks, in order of rank;
            every rank calls it once a step.
        warns: Whether this rank warns, once a name, of what is odd about a metric of any rank.
    """

    def __init__(self, *, gather: Gather = only_rank, warns: bool = True) -> None:
        self._gather, self._warns = gather, warns
        self._records: list[Record] = []
        self._warned: set[str] = set()
        self._warnings: list[str] = []

    def record(self, metrics: Any) -> None:
        """Keep `metrics`, a mapping from names to numbers, for the end of the step."""
        self._records.append(plain_record(metrics))

    def reduce(self) -> dict[str, Reduced]:
        """The metrics of the step over all ranks, the same on every rank; the next step starts
        empty.
        """
        mine, self._records = merge_rounds(self._records), []
        records = [record for rank in self._gather(mine) for record in rank]
        if self._warns:
            self._warn(complaints(records))
        return reduce_metrics(records)

    def take_warnings(self) -> tuple[str, ...]:
        """The warnings since the last call, for the terminal and the run folder."""
        warnings, self._warnings = tuple(self._warnings), []
        return warnings

    def _warn(self, sentences: dict[str, str]) -> None:
        for name, sentence in sentences.items():
            if name not in self._warned:
                logger.info(sentence)
                self._warnings.append(sentence)
        self._warned |= sentences.keys()
