"""Names that a configuration may use, as enums: for those who prefer `AdvantageEstimator.GRPO` to a string.

The registries in siirl.algos decide what exists; these are the names that the documents use.
"""

from enum import StrEnum


class AdvantageEstimator(StrEnum):
    """`algorithm.adv_estimator`."""

    GAE = "gae"
    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    RLOO = "rloo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    REMAX = "remax"
    OPO = "opo"
    GRPO_PASSK = "grpo_passk"
    GPG = "gpg"
    CPGD = "cpgd"
    GSPO = "gspo"  # the advantage of GRPO with the loss of GSPO


class WorkflowType(StrEnum):
    """`algorithm.workflow_type`: another way to name a pipeline."""

    DEFAULT = "DEFAULT"
    DAPO = "DAPO"
    EMBODIED = "EMBODIED"


class ApportionStrategy(StrEnum):
    """How TaskScheduler divides ranks among graphs."""

    EVEN = "even"
    PARAM_AWARE = "param_aware"
