"""Registry of advantage estimators, and the arguments that they may take."""

# B sample, T token

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.algos.call import named_arguments, register_in
from siirl.algos.tensor_checks import require_finite, require_same_shape
from siirl.errors import ConfigError, TensorError, UnknownNameError

Result = tuple[torch.Tensor, torch.Tensor]
"""Advantages and returns [B, T]."""
Estimator = Callable[..., Result]
Index = torch.Tensor | NDArray[np.generic]

ADVANTAGES: dict[str, Estimator] = {}

REWARD_AT_FINISH: set[Estimator] = set()
"""Estimators that read a trajectory's whole reward at its last executed token, including rewards of
earlier steps (`register_adv_est`).
"""

ESTIMATOR_COLUMNS = {
    "token_level_rewards": "[B, T], rewards after any KL penalty",
    "response_mask": "[B, T], 1 where the policy chose the token",
    "index": "int64 [B], group of each sample",
    "values": "[B, T], the critic's values, if a pipeline provides them",
    "value_mask": "[B, T], 1 at the first token of each decision, if a pipeline provides it",
    "bootstrap_values": "[B], the critic's value of the state after a cut or truncated row, "
    "0 if the episode terminated; with actor_rollout_ref.rollout.n_steps",
    "reward_baselines": "[B], reward of a greedy rollout of the same prompt, if a pipeline "
    "provides it",
}
"""Columns that an estimator may take."""

ESTIMATOR_SETTINGS = {
    "gamma": "discount factor",
    "lam": "GAE's lambda",
    "norm_adv_by_std_in_grpo": "whether GRPO divides by the group's deviation",
    "min_group_spread": "groups whose rewards differ by less than this get advantage 0",
    "pass_k": "k of pass@k; None is the whole group",
    "weight_factor_in_cpgd": "CPGD's weighting of groups",
    "adv_whitening": "how advantages of single tokens are whitened",
}
"""Keys of `algorithm` that an estimator may take."""

ESTIMATOR_ARGUMENTS = (
    ESTIMATOR_COLUMNS
    | ESTIMATOR_SETTINGS
    | {"ranks": "siirl.algos.ranks.Ranks: sums and rows of all ranks"}
)


def register_adv_est(
    name_or_enum: Any, *, reward_at_finish: bool = False
) -> Callable[[Estimator], Estimator]:
    """Decorator that registers an advantage estimator under a name, or under the value of an Enum
    member.

    Args:
        name_or_enum: The name.
        reward_at_finish: Put the whole reward at the last executed token. An estimator that
            subtracts the return of another whole episode at every token needs this: an earlier
            reward would have no baseline.

    Raises:
        ConfigError: The name is taken by another function, or the function requires an argument
            that is not provided.
    """
    name = str(getattr(name_or_enum, "value", name_or_enum))
    register = register_in(ADVANTAGES, name, kind="advantage estimator", known=ESTIMATOR_ARGUMENTS)

    def decorator(estimator: Estimator) -> Estimator:
        if reward_at_finish:
            REWARD_AT_FINISH.add(estimator)
        return register(estimator)

    return decorator


def reads_reward_at_finish(name: str) -> bool:
    """Whether the estimator `name` reads the whole reward at the last executed token.

    Raises:
        UnknownNameError: No such estimator.
    """
    return _estimator(name) in REWARD_AT_FINISH


def estimate_advantages(*, name: str, available: Mapping[str, Any]) -> Result:
    """Advantages and returns [B, T] of the estimator `name`.

    Args:
        name: A registered estimator.
        available: Values of `ESTIMATOR_ARGUMENTS`; some may be missing.

    Raises:
        UnknownNameError: No such estimator.
        ConfigError: The estimator needs a value that is not available (GAE without a critic).
        TensorError: Inputs or results of a wrong shape, or not finite.
    """
    estimator = _estimator(name)
    returned: Any = estimator(**named_arguments(estimator, available, kind="Advantage estimator"))
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ConfigError(
            f"Advantage estimator {name!r} must return (advantages, returns), and returned a "
            f"{type(returned).__name__}."
        )
    advantages_BT, returns_BT = returned
    require_same_shape(
        response_mask=available["response_mask"], advantages=advantages_BT, returns=returns_BT
    )
    try:
        require_finite(advantages=advantages_BT, returns=returns_BT)
    except TensorError as error:
        raise TensorError(f"Advantage estimator {name!r}: {error}") from error
    return advantages_BT, returns_BT


def _estimator(name: str) -> Estimator:
    if name not in ADVANTAGES:
        raise UnknownNameError.of(kind="advantage estimator", name=name, known=ADVANTAGES)
    return ADVANTAGES[name]
