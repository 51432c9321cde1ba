"""The metadata of a sample; a separate module, because the coordinator's process needs no torch."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class SampleInfo:
    """The coordinator's record of a sample, for routing, filters and balance; no tensors."""

    sum_tokens: int = 0
    """Tokens of prompt and response: the sample's work if `flops` is unknown."""
    prompt_length: int = 0
    response_length: int = 0
    uid: str = ""
    """Unique over the run."""
    node_id: str | None = None
    """Machine that holds the sample."""
    dict_info: dict[str, Any] = field(default_factory=dict)
    """The sample's plain values by column: `index`, `policy_version`, `task_id`, `complete`, …;
    filters read them.
    """
    size: int = 0
    """Bytes of the sample's tensors: the cost of moving it."""
    flops: float = 0.0
    """Work of a training pass over the sample; 0: unknown."""
