"""Policy losses: a loss per token from new and old log-probs and advantages.

`siirl.algos.aggregation` averages tokens. A family of losses is a file; a loss is a function
with its formula and source. `loss_registry` registers and calls them. Every file of this folder is
imported:
    clipped_ratio    vanilla, decoupled
    sequence_ratio   gspo, gspo_token, gmpo
    policy_gradient  gpg, cpgd, cispo, sapo
    covariance       clip_cov, kl_cov, with their selections over a mini-batch
`siirl.dag_worker.core_algos.register_policy_loss` registers losses in verl's form (four scalars
from `old_log_prob, log_prob, ...`).
"""

import importlib
import pkgutil

from siirl.algos.policy_losses.clipped_ratio import decoupled_policy_loss, vanilla_policy_loss
from siirl.algos.policy_losses.covariance import (
    clip_cov_policy_loss,
    kl_cov_policy_loss,
    select_clip_cov,
    select_kl_cov,
)
from siirl.algos.policy_losses.loss_registry import (
    LOSS_ARGUMENTS,
    LOSS_TRAITS,
    POLICY_LOSSES,
    PolicyLoss,
    check_loss_options,
    policy_loss,
    register_policy_loss,
    select_tokens,
)
from siirl.algos.policy_losses.policy_gradient import (
    cispo_policy_loss,
    cpgd_policy_loss,
    gpg_policy_loss,
    sapo_policy_loss,
)
from siirl.algos.policy_losses.sequence_ratio import (
    gmpo_policy_loss,
    gspo_policy_loss,
    gspo_token_policy_loss,
)
from siirl.algos.ratios import LOG_RATIO_LIMIT, check_clip, log_ratio

__all__ = [
    "LOG_RATIO_LIMIT",
    "LOSS_ARGUMENTS",
    "LOSS_TRAITS",
    "POLICY_LOSSES",
    "PolicyLoss",
    "check_clip",
    "check_loss_options",
    "cispo_policy_loss",
    "clip_cov_policy_loss",
    "cpgd_policy_loss",
    "decoupled_policy_loss",
    "gmpo_policy_loss",
    "gpg_policy_loss",
    "gspo_policy_loss",
    "gspo_token_policy_loss",
    "kl_cov_policy_loss",
    "log_ratio",
    "policy_loss",
    "register_policy_loss",
    "sapo_policy_loss",
    "select_clip_cov",
    "select_kl_cov",
    "select_tokens",
    "vanilla_policy_loss",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
