"""Advantages: how much better a sample, or a token of it, was than expected.

An estimator is any function that returns `(advantages, returns)`, both [B, T] and 0 where the mask
is 0, and is registered under the name that `algorithm.adv_estimator` gives. siirl's own are the
functions of `estimators`: configuration, checks and the documents' names follow from these, and no
list repeats them. An estimator is called by name with what its signature asks for among
`ESTIMATOR_ARGUMENTS`, which are the names of the user's documents; a user's own function is
registered in the same way.

The formulas, without registry or ranks: `group_relative` (GRPO, Dr. GRPO, RLOO, OPO, GPG, CPGD),
`pass_at_k`, `token_level` (GAE, discounted returns). `estimators` spreads them over tokens and
ranks, under the documents' names. Episodes of robots need no formula of their own:
`siirl.algos.trajectories` makes mask and token rewards of them.
"""

from siirl.algos.advantages import estimators as _estimators  # noqa: F401  # registers them
from siirl.algos.advantages.advantage_registry import (
    ADVANTAGES,
    ESTIMATOR_ARGUMENTS,
    ESTIMATOR_COLUMNS,
    ESTIMATOR_SETTINGS,
    REWARD_AT_FINISH,
    Estimator,
    Index,
    estimate_advantages,
    reads_reward_at_finish,
    register_adv_est,
)
from siirl.algos.advantages.group_relative import (
    CPGD_WEIGHTS,
    cpgd_advantage,
    gpg_advantage,
    grpo_advantage,
    opo_advantage,
    rloo_advantage,
)
from siirl.algos.advantages.pass_at_k import pass_at_k_advantage
from siirl.algos.advantages.token_level import (
    WHITENINGS,
    discounted_returns,
    gae_advantage,
    whiten_advantages,
)

__all__ = [
    "ADVANTAGES",
    "CPGD_WEIGHTS",
    "ESTIMATOR_ARGUMENTS",
    "ESTIMATOR_COLUMNS",
    "ESTIMATOR_SETTINGS",
    "REWARD_AT_FINISH",
    "WHITENINGS",
    "Estimator",
    "Index",
    "cpgd_advantage",
    "discounted_returns",
    "estimate_advantages",
    "gae_advantage",
    "gpg_advantage",
    "grpo_advantage",
    "opo_advantage",
    "pass_at_k_advantage",
    "reads_reward_at_finish",
    "register_adv_est",
    "rloo_advantage",
    "whiten_advantages",
]
