"""The scorer of language models: log-probs and entropy of the tokens that the model said, with no
padding and without whole logits.

Rows lie side by side in lanes, the answers to a prompt behind the prompt (`packing`), and go
through the model once; only hidden states that predict a scored token meet the head
(`siirl.algos.linear_log_probs`). Tokens that somebody else said (answers of tools, prompts) are
seen by the model and not scored: they have 0.
"""

# B row, T response token, L lane, S place in a lane, D entry of a hidden state, V entry of the
# vocabulary, M scored token of any row

from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.linear_log_probs import linear_token_scores
from siirl.algos.log_probs import TokenScores
from siirl.engine.actor.packing import model_width, pack_rows


def text_scorer(module: Any, micro_batch: TensorDict, temperature: float) -> TokenScores:
    """Log-probs and entropy [B, T] of the response tokens of `micro_batch`; see
    `siirl.engine.training.train_engine.Scorer`.

    Args:
        module: `siirl.models.language_model.LanguageModel`.
        micro_batch: See `siirl.engine.actor.packing.pack_rows`.
        temperature: Divides the logits.

    Raises:
        TensorError: Columns that do not fit each other.
    """
    packed = pack_rows(micro_batch, width=model_width(module), share_prompts=module.shares_prompts)
    hidden_LSD = module(packed.input_ids_LS, packed.position_ids_LS, packed.sees_L1SS)
    hidden_MD, weight_VD = _head(packed.at_predictors(hidden_LSD), module)
    with torch.autocast(
        hidden_MD.device.type, enabled=False
    ):  # its backward pass, which is outside of autocast, computes logits anew
        # Numbers that are not finite are refused by the loss, when all ranks have gone through the
        # module.
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
    """Hidden states and output weights in the type in which the model's own head would multiply
    them; a bias is one more entry of both.
    """
    device = hidden_MD.device.type
    dtype = (
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_MD.dtype
    )
    weight_VD, bias_V = module.output_weight, module.output_bias
    if bias_V is not None:
        hidden_MD = torch.cat([hidden_MD, hidden_MD.new_ones(len(hidden_MD), 1)], dim=1)
        weight_VD = torch.cat([weight_VD, bias_V[:, None]], dim=1)
    return hidden_MD.to(dtype), weight_VD.to(dtype)
