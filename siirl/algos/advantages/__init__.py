"""Advantages: by how much a sample, or one of its tokens, exceeded expectation.

An estimator is a function that returns `(advantages, returns)`, both [B, T] and 0 where the mask is
0, registered under a name of `algorithm.adv_estimator`. The shipped ones are in `estimators`;
configuration and checks read their signatures from there. Arguments are passed by name, those of
`ESTIMATOR_ARGUMENTS` that the signature has. User-defined functions register in the same way.

The formulas, without registry or ranks, are in `group_relative` (GRPO, Dr. GRPO, RLOO, OPO, GPG,
CPGD), `pass_at_k` and `token_level` (GAE, discounted returns). `estimators` applies them to tokens
and ranks. `siirl.algos.trajectories` turns robot episodes into masks and token rewards, so they
need no formulas of their own.
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
