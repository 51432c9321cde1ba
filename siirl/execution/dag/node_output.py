"""Return value of a node's function: the batch with its new columns, and metrics."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class NodeOutput:
    """Result of a node.

    Attributes:
        batch: The batch that the next nodes get, usually the one that came in with columns added or
            rows dropped.
        metrics: Numbers by their full names (`reward/mean_score`).
        more_prompts: Over all ranks, and the same on every rank: the node is not content with what
            it got. The nodes before it are run on so many further prompts, and it is called again
            with what it returned and theirs together. 0: the graph continues.
    """

    batch: Any
    metrics: dict[str, Any] = field(default_factory=dict)
    more_prompts: int = 0
