"""Value scorers of language models and of VLA policies.

Text: a token's value is read from the hidden state that predicts it.

Rows are packed without padding, as in the policy's scorer (`siirl.engine.actor.text_scorer`).
Tokens of other speakers (tools, the prompt) are inputs of the model and have no value. Each token
of the policy is a decision.

VLA policies: one value per observation, at every executed token of its chunk. All tokens of a chunk
are decoded at once from one observation: one state and one decision. The critic and the steps of
GAE use the tokens of `first_token_of_each_chunk`, one per decision. Steps from token to token
inside a chunk would discount by lambda without passage of time, and weigh a state by the number of
action dimensions.
"""

# B row, T response token, L lane, S place in a lane, C chunk, N executed chunk of any row

from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from siirl.algos.tensor_checks import as_bool_mask
from siirl.engine.actor.embodied_scorer import (
    CHUNK_COLUMNS,
    inputs_of_executed_chunks,
    number_of_chunks,
    put_back,
)
from siirl.engine.actor.packed_pictures import seen_in_lanes
from siirl.engine.actor.packing import model_width, pack_rows
from siirl.models.language_model import LanguageModel


def text_value_scorer(module: Any, micro_batch: TensorDict, temperature: float) -> torch.Tensor:
    """Values [B, T] at the policy's own tokens of `micro_batch`, 0 elsewhere.

    See `siirl.engine.training.batch_loss.Scorer`.

    Args:
        module: `siirl.engine.critic.value_model.ValueModel` on a
            `siirl.models.language_model.LanguageModel`.
        micro_batch: Rows with the columns that `siirl.engine.actor.packing.pack_rows` reads.
        temperature: Not read: values have none.
    """
    packed = pack_rows(
        micro_batch,
        width=model_width(module.trunk),
        share_prompts=module.trunk.shares_prompts,
        alone=not module.trunk.packs,
    )
    seen = seen_in_lanes(packed, micro_batch, module.trunk)
    values_LS = module(packed.input_ids_LS, packed.position_ids_LS, packed.sees, **seen)
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


def embodied_value_scorer(
    module: nn.Module, micro_batch: TensorDict, temperature: float
) -> torch.Tensor:
    """Values [B, T] at the executed tokens of `micro_batch`, 0 elsewhere.

    See `siirl.engine.training.batch_loss.Scorer`.

    Args:
        module: `siirl.engine.critic.value_model.ValueModel` on `PolicyFeatures`.
        micro_batch: The columns that `siirl.engine.actor.embodied_scorer` reads.
        temperature: Not read: values have none.
    """
    kept_BT = as_bool_mask(micro_batch["response_mask"])
    inputs, executed = inputs_of_executed_chunks(micro_batch, kept_BT=kept_BT)
    values_N = module(**inputs)
    tokens = kept_BT.shape[1] // executed.chunks
    return put_back(values_N[:, None].expand(-1, tokens), executed, kept_BT)


def states_behind(batch: TensorDict) -> TensorDict:
    """The states after the last decision of each row, as rows of one chunk with one token."""
    rows = len(batch)
    token_BT = torch.zeros((rows, 1), dtype=torch.long, device=batch["response_mask"].device)
    columns = {
        name: batch[f"final_{name}"][:, None] for name in CHUNK_COLUMNS if f"final_{name}" in batch
    }
    words = "instruction_ids" if "final_instruction_ids" not in batch else "final_instruction_ids"
    return TensorDict(
        {
            **columns,
            "instruction_ids": batch[words],
            "responses": token_BT,
            "response_mask": torch.ones_like(token_BT),
        },
        batch_size=[rows],
    )


def first_token_of_each_chunk(batch: TensorDict) -> torch.Tensor:
    """Bool [B, T]: the first executed token of each chunk that was executed, even in part."""
    kept_BCS = as_bool_mask(batch["response_mask"]).unflatten(1, (number_of_chunks(batch), -1))
    return (kept_BCS & (kept_BCS.cumsum(-1) == 1)).flatten(1)
