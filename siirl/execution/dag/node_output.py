"""Return value of a node's function: the batch with its new columns, and metrics."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class NodeOutput:
    """Result of a node.

    Attributes:
        batch: The batch for the next nodes, usually the input with columns added or rows dropped.
        metrics: Numbers by their full names (`reward/mean_score`).
        more_prompts: Number of further prompts that the node requests, over all ranks; the same on
            every rank. The nodes before it run on them, and it is called again with its output and
            theirs together. 0: the graph continues.
    """

    batch: Any
    metrics: dict[str, Any] = field(default_factory=dict)
    more_prompts: int = 0
