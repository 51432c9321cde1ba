"""Value scorer for robots: one value an observation, at every executed token of its chunk.

All tokens of a chunk are decoded at once from one observation: one state and one decision, whose
parts are the executed tokens. The column holds the value at each of them. What a critic learns, and
the steps of GAE, are the tokens of `first_token_of_each_chunk`: one a decision. Steps from token to
token inside a chunk would discount by lambda without passage of time, and weigh a state by the
number of action dimensions.
"""

# B trajectory, C chunk, S token of a chunk, T = C*S token, N executed chunk of any trajectory

import torch
from tensordict import TensorDict
from torch import nn

from siirl.algos.tensor_checks import as_bool_mask
from siirl.engine.actor.embodied_scorer import CHUNK_COLUMNS, number_of_chunks, put_back


def embodied_value_scorer(
    module: nn.Module, micro_batch: TensorDict, temperature: float
) -> torch.Tensor:
    """Values [B, T] at the executed tokens of `micro_batch`, 0 elsewhere.

    See `siirl.engine.training.train_engine.Scorer`.

    Args:
        module: `siirl.engine.critic.value_model.ValueModel` on `PolicyFeatures`.
        micro_batch: The columns that `siirl.engine.actor.embodied_scorer` reads.
        temperature: Not read: values have none.
    """
    kept_BT = as_bool_mask(micro_batch["response_mask"])
    chunks = number_of_chunks(micro_batch)
    executed_BC = kept_BT.unflatten(1, (chunks, -1)).any(-1)
    if not bool(executed_BC.any()):
        # on several ranks the module must run, even for padding rows
        executed_BC[0, 0] = True
    observations = {
        name: micro_batch[name][executed_BC] if name in micro_batch else None
        for name in CHUNK_COLUMNS
    }
    values_N = module(
        **observations, instruction_ids=micro_batch["instruction_ids"][executed_BC.nonzero()[:, 0]]
    )
    tokens = kept_BT.shape[1] // chunks
    return put_back(values_N[:, None].expand(-1, tokens), executed_BC, kept_BT)


def first_token_of_each_chunk(batch: TensorDict) -> torch.Tensor:
    """Bool [B, T]: the first executed token of each chunk that was executed, even in part."""
    kept_BCS = as_bool_mask(batch["response_mask"]).unflatten(1, (number_of_chunks(batch), -1))
    return (kept_BCS & (kept_BCS.cumsum(-1) == 1)).flatten(1)
