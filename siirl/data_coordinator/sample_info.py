"""The metadata of a sample, apart from `sample`: the coordinator's process needs no torch."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class SampleInfo:
    """The coordinator's record of a sample: enough to route, filter and balance, and no tensor."""

    sum_tokens: int = 0
    """Tokens of prompt and response: the work that the sample makes, where `flops` is not known."""
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
    """Bytes of the sample's tensors: what it costs to move it."""
    flops: float = 0.0
    """Work of a training pass over the sample; 0: not known."""
