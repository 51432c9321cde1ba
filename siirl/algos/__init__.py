"""The formulas: pure functions on tensors, with their sources; no Ray, no config objects, no files.

Start with `advantages`, `policy_losses` and `aggregation.py`; the other modules serve these three.
An algorithm is an advantage and a loss from the two registries, plus a pipeline. Balanced
partitions are in `siirl.data_coordinator.balance`.
"""

from siirl.algos.advantages import ADVANTAGES, estimate_advantages, register_adv_est
from siirl.algos.aggregation import AGGREGATIONS, aggregate_loss, aggregation_weight
from siirl.algos.policy_losses import (
    POLICY_LOSSES,
    PolicyLoss,
    policy_loss,
    register_policy_loss,
)
from siirl.data_coordinator.balance import get_seqlen_balanced_partitions, micro_batches_by_budget

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "POLICY_LOSSES",
    "PolicyLoss",
    "aggregate_loss",
    "aggregation_weight",
    "estimate_advantages",
    "get_seqlen_balanced_partitions",
    "micro_batches_by_budget",
    "policy_loss",
    "register_adv_est",
    "register_policy_loss",
]
