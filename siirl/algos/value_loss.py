"""The critic's loss: half the squared error, clipped to limit how far one update moves a value."""

# B row (trajectory), T token

import torch

from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import ConfigError


def clipped_value_loss(
    *,
    values_BT: torch.Tensor,
    old_values_BT: torch.Tensor,
    returns_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_range: float = 0.5,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`max((V - R)^2, (clip(V, V_old +- clip_range) - R)^2) / 2` per token.

    Source: OpenAI baselines' ppo2; not in the PPO paper.

    Args:
        values_BT: The critic's current values, with gradient.
        old_values_BT: The critic's values when the advantages were computed.
        returns_BT: Targets of the values.
        mask_BT: 1 at the tokens that count.
        clip_range: In units of the return; 0.5 is the field's default for language models
            (baselines: 0.2 on scaled returns).

    Returns:
        Loss per token, and 1 where the clip is active, else 0; both are 0 where the mask is 0.
    """
    if not clip_range > 0:
        raise ConfigError(f"clip_range={clip_range} of the value loss must be positive.")
    require_axes(2, values=values_BT)
    require_same_shape(
        values=values_BT, old_values=old_values_BT, returns=returns_BT, response_mask=mask_BT
    )
    kept_BT = as_bool_mask(mask_BT)
    require_finite(
        mask=kept_BT, values=values_BT.detach(), old_values=old_values_BT, returns=returns_BT
    )
    zeros_BT = torch.zeros_like(values_BT)
    values_BT, old_values_BT, returns_BT = (
        torch.where(kept_BT, x, zeros_BT) for x in (values_BT, old_values_BT, returns_BT)
    )
    clipped_BT = torch.clamp(values_BT, old_values_BT - clip_range, old_values_BT + clip_range)
    plain_error_BT = (values_BT - returns_BT).square()
    clipped_error_BT = (clipped_BT - returns_BT).square()
    return 0.5 * torch.maximum(plain_error_BT, clipped_error_BT), (
        clipped_error_BT > plain_error_BT
    ).detach().float()
