"""Value scorer for language models: a token's value is read from the hidden state that predicts it.

Rows are packed without padding, as in the policy's scorer (`siirl.engine.actor.text_scorer`).
Tokens of other speakers (tools, the prompt) are input of the model and have no value. Each token of
the policy is a decision.
"""

# B row, T response token, L lane, S place in a lane, M own token of any row

from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.tensor_checks import as_bool_mask
from siirl.engine.actor.packing import model_width, pack_rows
from siirl.models.language_model import LanguageModel


def text_value_scorer(module: Any, micro_batch: TensorDict, temperature: float) -> torch.Tensor:
    """Values [B, T] at the policy's own tokens of `micro_batch`, 0 elsewhere.

    See `siirl.engine.training.train_engine.Scorer`.

    Args:
        module: `siirl.engine.critic.value_model.ValueModel` on a
            `siirl.models.language_model.LanguageModel`.
        micro_batch: See `siirl.engine.actor.packing.pack_rows`.
        temperature: Not read: values have none.
    """
    packed = pack_rows(
        micro_batch, width=model_width(module.trunk), share_prompts=module.trunk.shares_prompts
    )
    values_LS = module(packed.input_ids_LS, packed.position_ids_LS, packed.sees_L1SS)
    return packed.put_back(packed.at_predictors(values_LS))


def every_own_token(batch: TensorDict) -> torch.Tensor:
    """Bool [B, T]: the tokens that the policy generated."""
    return as_bool_mask(batch["response_mask"])


def without_head(model: LanguageModel) -> LanguageModel:
    """Remove the model's head and return the model.

    A critic needs no logits, and a weight without gradient would waste memory.
    """
    head = model.causal_lm.get_output_embeddings()
    for name in [name for name, part in model.named_children() if part is head]:
        delattr(model, name)
        delattr(model.causal_lm, name)
    return model
