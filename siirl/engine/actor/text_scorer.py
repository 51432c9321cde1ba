"""Scorer of language models: log-probs and entropy of response tokens, with hardly any padding.

Rows are packed into lanes, each prompt followed by its answers (`packing`), and pass through the
model once. Only hidden states that predict a scored token reach the head
(`siirl.algos.linear_log_probs`), so full logits are never built. Tokens of other speakers (tools,
prompts) are inputs of the model; they are not scored and get 0.
"""

# B row, T response token, L lane, S place in a lane, D entry of a hidden state, V entry of the
# vocabulary, M scored token of any row

from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.linear_log_probs import linear_token_scores
from siirl.algos.log_probs import TokenScores
from siirl.engine.actor.packed_pictures import seen_in_lanes
from siirl.engine.actor.packing import model_width, pack_rows


def text_scorer(module: Any, micro_batch: TensorDict, temperature: float) -> TokenScores:
    """Log-probs and entropy [B, T] of the response tokens of `micro_batch`.

    See `siirl.engine.training.batch_loss.Scorer`.

    Args:
        module: `siirl.models.language_model.LanguageModel`.
        micro_batch: Rows with the columns that `siirl.engine.actor.packing.pack_rows` reads.
        temperature: Divides the logits.

    Raises:
        TensorError: Columns whose shapes disagree.
    """
    packed = pack_rows(
        micro_batch,
        width=model_width(module),
        share_prompts=module.shares_prompts,
        alone=not module.packs,
    )
    seen = seen_in_lanes(packed, micro_batch, module)
    hidden_LSD = module(packed.input_ids_LS, packed.position_ids_LS, packed.sees, **seen)
    hidden_MD, weight_VD = _head(packed.at_predictors(hidden_LSD), module)
    # the backward pass, which is outside of autocast, recomputes logits
    with torch.autocast(hidden_MD.device.type, enabled=False):
        # The loss refuses numbers that are not finite, after all ranks have run the module.
        scores = linear_token_scores(
            hidden=hidden_MD,
            weight=weight_VD,
            tokens=packed.tokens_M,
            temperature=temperature,
            check=False,
        )
    return TokenScores(
        log_probs_BT=packed.put_back(scores.log_probs_BT),
        entropy_BT=packed.put_back(scores.entropy_BT),
    )


def _head(hidden_MD: torch.Tensor, module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and output weights in the dtype of the model's own head.

    A bias becomes an additional entry of both.
    """
    device = hidden_MD.device.type
    dtype = (
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_MD.dtype
    )
    weight_VD = module.output_weight
    bias_V = module.output_bias
    if bias_V is not None:
        hidden_MD = torch.cat([hidden_MD, hidden_MD.new_ones(len(hidden_MD), 1)], dim=1)
        weight_VD = torch.cat([weight_VD, bias_V[:, None]], dim=1)
    return hidden_MD.to(dtype), weight_VD.to(dtype)
