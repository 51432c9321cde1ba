"""Rows of different length side by side, so that a language model computes hardly any padding.

Rows are laid one behind the other into *lanes* of one length; to the model a lane is a row of its batch, in which each text begins
where its positions begin anew (`siirl.models.language_model.LanguageModel.forward`). One lane with everything would need no padding at
all, but masked attention costs the square of a lane's length. At a quarter of the model's width it costs some 4 % of the matrices
(4 S D operations a token and layer beside 24 D^2), so a lane is that long, or as long as the longest row.

A row goes in up to the token before its last scored one: what comes after predicts nothing that is asked for.
"""

# B row, P prompt token, T response token, L lane, S place in a lane, M scored token of any row

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.checks import as_bool_mask
from siirl.data_coordinator.balance import first_fit_decreasing
from siirl.errors import TensorError

COLUMNS = ("input_ids", "attention_mask", "responses", "response_mask")


@dataclass(frozen=True)
class PackedRows:
    """A micro-batch in lanes, and the way back."""

    input_ids_LS: torch.Tensor
    position_ids_LS: torch.Tensor
    lane_M: torch.Tensor
    """Lane of the place that predicts each scored token, the one before it."""
    place_M: torch.Tensor
    """That place in its lane."""
    tokens_M: torch.Tensor
    """The scored tokens."""
    row_M: torch.Tensor
    token_M: torch.Tensor
    """Place of each scored token among its row's responses."""
    kept_BT: torch.Tensor
    """`response_mask`, bool."""

    def at_predictors(self, values_LS: torch.Tensor) -> torch.Tensor:
        """The entries [M, ...] of `values_LS` [L, S, ...] at the places that predict the scored tokens."""
        return values_LS[self.lane_M, self.place_M]

    def put_back(self, values_M: torch.Tensor) -> torch.Tensor:
        """Numbers of scored tokens at their places [B, T]; 0 elsewhere."""
        if self.kept_BT.shape[1] == 0:
            return values_M[:0].view(self.kept_BT.shape)
        values_BT = values_M.new_zeros(self.kept_BT.shape).index_put((self.row_M, self.token_M), values_M)
        return torch.where(self.kept_BT, values_BT, torch.zeros_like(values_BT))


def lane_length(module: Any) -> int:
    """Tokens of a lane for a `siirl.models.language_model.LanguageModel`, or anything else with transformers' `config`."""
    return max(1, int(module.config.get_text_config().hidden_size) // 4)


def pack_rows(micro_batch: TensorDict, *, lane_length: int) -> PackedRows:
    """Lay the rows of a micro-batch into lanes.

    Where no token is scored, one token is nevertheless, and `put_back` leaves it out: over several ranks the model must run, also for
    rows that only pad.

    Args:
        micro_batch: `input_ids` and `attention_mask` [B, P + T], `responses` and `response_mask` [B, T], padded on any side.
        lane_length: Tokens of a lane; more where a row has more.

    Raises:
        TensorError: Columns that are missing or do not fit each other, or a response without any token before it.
    """
    ids_BS, present_BS, kept_BT = _checked(micro_batch)
    first = ids_BS.shape[1] - kept_BT.shape[1]  # column of the first response token
    row_M, token_M = kept_BT.nonzero().unbind(1)
    if len(row_M) == 0:
        return _one_token(micro_batch["responses"], kept_BT)
    place_BS = present_BS.long().cumsum(1) - 1
    column_M = first + token_M
    predictor_M = place_BS[row_M, column_M] - 1
    if not bool(present_BS[row_M, column_M].all()) or int(predictor_M.min()) < 0:
        raise TensorError("A scored token is padding (attention_mask is 0), or stands at the beginning of its row: nothing predicts it.")

    last_B = torch.where(kept_BT, first + torch.arange(kept_BT.shape[1], device=ids_BS.device), 0).amax(1)
    needed_BS = present_BS & (torch.arange(ids_BS.shape[1], device=ids_BS.device) < last_B[:, None])
    lane_B, start_B, lanes, length = _lanes(needed_BS.sum(1), lane_length)
    row_N, column_N = needed_BS.nonzero().unbind(1)
    place_N = place_BS[row_N, column_N]
    target = (lane_B[row_N], start_B[row_N] + place_N)
    empty_LS = ids_BS.new_zeros((lanes, length))
    return PackedRows(
        input_ids_LS=empty_LS.index_put(target, ids_BS[row_N, column_N]),
        position_ids_LS=empty_LS.index_put(target, place_N),  # padding has position 0, so each of it is a text of its own
        lane_M=lane_B[row_M],
        place_M=start_B[row_M] + predictor_M,
        tokens_M=micro_batch["responses"][row_M, token_M],
        row_M=row_M,
        token_M=token_M,
        kept_BT=kept_BT,
    )


def _checked(micro_batch: TensorDict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    missing = [name for name in COLUMNS if name not in micro_batch]
    if missing:
        raise TensorError(f"A batch of texts needs the column {missing[0]!r}; it has: {', '.join(map(str, micro_batch.keys()))}.")
    shapes = {name: list(micro_batch[name].shape) for name in COLUMNS}
    whole, response = shapes["input_ids"], shapes["responses"]
    if shapes["attention_mask"] != whole or shapes["response_mask"] != response or len(whole) != 2 or response[1] > whole[1]:
        raise TensorError(f"Columns of texts do not fit each other: {shapes}; [B, P + T], the same, [B, T], the same are expected.")
    present_BS = as_bool_mask(micro_batch["attention_mask"], name="attention_mask")
    return micro_batch["input_ids"], present_BS, as_bool_mask(micro_batch["response_mask"])


def _lanes(lengths_B: torch.Tensor, lane_length: int) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Lane of each row, where it begins there, how many lanes there are, and the length of the longest."""
    lengths = lengths_B.tolist()
    parts = first_fit_decreasing(lengths, max(lane_length, *lengths))
    lane, start = [0] * len(lengths), [0] * len(lengths)
    longest = 0
    for number, rows in enumerate(parts):
        filled = 0
        for row in rows:
            lane[row], start[row] = number, filled
            filled += lengths[row]
        longest = max(longest, filled)
    device = lengths_B.device
    return torch.tensor(lane, device=device), torch.tensor(start, device=device), len(parts), longest


def _one_token(responses_BT: torch.Tensor, kept_BT: torch.Tensor) -> PackedRows:
    zero_1 = responses_BT.new_zeros(1)
    return PackedRows(
        input_ids_LS=zero_1[None],
        position_ids_LS=zero_1[None],
        lane_M=zero_1,
        place_M=zero_1,
        tokens_M=zero_1,
        row_M=zero_1,
        token_M=zero_1,
        kept_BT=kept_BT,
    )
