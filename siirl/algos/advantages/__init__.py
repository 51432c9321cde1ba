"""Advantages: how far a sample, or one of its tokens, exceeded expectation.

An estimator is a function that returns `(advantages, returns)`, both [B, T] and 0 where the mask is
0, registered under a name of `algorithm.adv_estimator`. It is called with the arguments of
`ESTIMATOR_ARGUMENTS` that its signature names. User-defined functions register in the same way.

Each file holds a formula, without registry or ranks, and the estimator that applies it to tokens
and ranks: `group_relative` (GRPO, Dr. GRPO, RLOO, OPO, GPG, CPGD), `pass_at_k`, `gae`, `reinforce`
(REINFORCE++, ReMax). Every file of this folder is imported, so a new file needs no entry elsewhere.
Configuration and checks read names and signatures from these files.
`siirl.algos.trajectories` turns the reward of a robot's episode into token rewards, so the same
formulas apply to it.
"""

import importlib
import pkgutil

from siirl.algos.advantages.advantage_registry import (
    ADVANTAGES,
    ESTIMATOR_ARGUMENTS,
    ESTIMATOR_COLUMNS,
    ESTIMATOR_SETTINGS,
    REWARD_AT_FINISH,
    Estimator,
    Index,
    Result,
    estimate_advantages,
    reads_reward_at_finish,
    register_adv_est,
)
from siirl.algos.advantages.gae import gae_advantage
from siirl.algos.advantages.group_relative import (
    CPGD_WEIGHTS,
    cpgd_advantage,
    gpg_advantage,
    grpo_advantage,
    opo_advantage,
    rloo_advantage,
)
from siirl.algos.advantages.pass_at_k import pass_at_k_advantage
from siirl.algos.advantages.reinforce import discounted_returns
from siirl.algos.advantages.whitening import WHITENINGS, whiten_advantages

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
    "Result",
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

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
