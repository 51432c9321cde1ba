"""Configuration names as enums, for callers who prefer `AdvantageEstimator.GRPO` to a string.

The registries in siirl.algos decide which names exist; these enums have the documented ones.
"""

from enum import StrEnum

from siirl.params.registered_names import ESTIMATORS

GSPO = "gspo"  # the advantage of GRPO with the loss of GSPO
NAMES = {name.upper(): name for name in (*ESTIMATORS, GSPO)}
AdvantageEstimator = StrEnum("AdvantageEstimator", NAMES)  # type: ignore[misc]
"""`algorithm.adv_estimator`: a member for each registered estimator."""


class WorkflowType(StrEnum):
    """`algorithm.workflow_type`: an alternative name of a pipeline."""

    DEFAULT = "DEFAULT"
    DAPO = "DAPO"
    EMBODIED = "EMBODIED"


class ApportionStrategy(StrEnum):
    """TaskScheduler's division of ranks among graphs."""

    EVEN = "even"
    PARAM_AWARE = "param_aware"
