"""Robot episodes as rows of tokens: the position of an episode's reward.

A row holds the action tokens of all environment steps, [chunks x chunk length x dimensions]. Its
mask excludes those of the last chunk that were not executed
(`siirl.engine.rollout.vla.embodied_workflow`). Every estimator and loss of siirl.algos then applies
unchanged: the reward is at the last executed token, and a GRPO advantage is the same at all tokens.
"""

# B episode, T action token

import torch

from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import TensorError


def reward_at_finish(*, rewards_B: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Token rewards [B, T]: each episode's reward at its last kept token, 0 elsewhere.

    Raises:
        TensorError: A reward that is not finite, or of an episode without executed tokens.
    """
    require_axes(1, rewards=rewards_B)
    require_axes(2, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    require_same_shape(rewards=rewards_B, rows_of_response_mask=kept_BT.any(-1))
    require_finite(rewards=rewards_B)
    homeless_B = ~kept_BT.any(-1) & (rewards_B != 0)
    if bool(homeless_B.any()):
        row = int(homeless_B.nonzero()[0])
        raise TensorError(
            f"rewards is {float(rewards_B[row])} in row {row}, whose episode executed no token: "
            "drop it."
        )
    after_BT = kept_BT.flip(1).cumsum(1).flip(1)  # kept tokens from here on
    return torch.where(
        kept_BT & (after_BT == 1), rewards_B[:, None], torch.zeros_like(rewards_B[:, None])
    )
