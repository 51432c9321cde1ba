"""Packs rows of different lengths, so that a language model computes hardly any padding.

Rows are concatenated into *lanes* of equal length. The model sees a lane as one row of its batch;
each text in it begins where positions restart
(`siirl.models.language_model.LanguageModel.forward`). One lane with all rows would need no padding,
but the cost of masked attention grows with the square of the lane's length. At a quarter of the
model's width it is about 4 % of the cost of the matrices (4 S D operations per token and layer,
against 24 D^2). A lane therefore has that length, or that of its longest group.

If the model supports it, rows with the same prompt share it (`prefix_groups`): prompt, answer,
answer, …; the positions of each answer continue those of the prompt, and a mask lets it attend to
the prompt and itself.

A model that cannot keep the texts of a lane apart (`LanguageModel.packs`) gets one row a lane,
padded behind it.

A row is packed up to the token before its last scored one: later tokens predict no scored token.
"""

# B row, P prompt token, T response token, L lane, S place in a lane, M scored token of any row, N
# token of any row that the model sees

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.tensor_checks import as_bool_mask
from siirl.data_coordinator.balance import first_fit_decreasing
from siirl.engine.actor.prefix_groups import PrefixGroup, prefix_groups
from siirl.engine.training.batch_cuts import PrefixGrouping, RowGroup, row_lengths
from siirl.errors import TensorError
from siirl.models.lane_attention import LaneMask

COLUMNS = ("input_ids", "attention_mask", "responses", "response_mask")
PADDING_OWNER = -1
"""Owner of padding."""


@dataclass(frozen=True)
class PackedRows:
    """A micro-batch in lanes, and the map back to its rows."""

    input_ids_LS: torch.Tensor
    position_ids_LS: torch.Tensor
    sees: LaneMask | None
    """Attention mask; None: each place attends to its text up to itself.

    Without a mask, texts begin where positions restart.
    """
    lane_M: torch.Tensor
    """Lane of the place that predicts each scored token, the one before it."""
    place_M: torch.Tensor
    """Position of the token in its lane."""
    tokens_M: torch.Tensor
    """The scored tokens."""
    row_M: torch.Tensor
    token_M: torch.Tensor
    """Column of each scored token among its row's responses."""
    kept_BT: torch.Tensor
    """`response_mask`, bool."""
    row_N: torch.Tensor
    column_N: torch.Tensor
    """Row and column in the batch of every token that the model sees."""
    target_N: tuple[torch.Tensor, torch.Tensor]
    """Lane and place of each; equal for rows that share a prompt."""

    def placed(self, values_BS: torch.Tensor) -> torch.Tensor:
        """Values [L, S, ...] of the tokens of a batch [B, P + T, ...] in their lanes."""
        values_N = values_BS[self.row_N, self.column_N]
        shape = (*self.input_ids_LS.shape, *values_BS.shape[2:])
        return values_N.new_zeros(shape).index_put(self.target_N, values_N)

    def at_predictors(self, values_LS: torch.Tensor) -> torch.Tensor:
        """Entries [M, ...] of `values_LS` [L, S, ...] at the places that predict scored tokens."""
        return values_LS[self.lane_M, self.place_M]

    def put_back(self, values_M: torch.Tensor) -> torch.Tensor:
        """Scatter values of scored tokens to their positions [B, T]; 0 elsewhere."""
        if self.kept_BT.shape[1] == 0:
            return values_M[:0].view(self.kept_BT.shape)
        values_BT = values_M.new_zeros(self.kept_BT.shape).index_put(
            (self.row_M, self.token_M), values_M
        )
        return torch.where(self.kept_BT, values_BT, torch.zeros_like(values_BT))


@dataclass(frozen=True)
class _Rows:
    """The checked columns of a batch, and the tokens that the model must see."""

    ids_BS: torch.Tensor
    present_BS: torch.Tensor
    kept_BT: torch.Tensor
    needed_BS: torch.Tensor
    """Bool: every token up to the one before the row's last scored token."""
    picture_B: torch.Tensor | None
    """Digest of the pictures of each prompt; None for text models."""

    @property
    def first(self) -> int:
        """Column of the first response token."""
        return self.ids_BS.shape[1] - self.kept_BT.shape[1]

    def groups(self, *, width: int, most_tokens: int | None = None) -> list[PrefixGroup]:
        prompts_BP = self.ids_BS.where(self.present_BS, PADDING_OWNER)[:, : self.first]
        if self.picture_B is not None:  # same words, different picture
            prompts_BP = torch.cat([prompts_BP, self.picture_B[:, None]], dim=1)
        prefixes_B = self.needed_BS[:, : self.first].sum(1)
        return prefix_groups(
            prompts_BP, self.needed_BS.sum(1), prefixes_B, width=width, most_tokens=most_tokens
        )


@dataclass(frozen=True)
class _Layout:
    """Position of each row in the lanes.

    The first `prefix` tokens of a row may be shared; the suffix follows.
    """

    lane_B: torch.Tensor
    prefix_B: torch.Tensor
    prefix_start_B: torch.Tensor
    suffix_start_B: torch.Tensor
    group_B: torch.Tensor
    lanes: int
    length: int

    def one_row_a_lane(self, row_N: torch.Tensor) -> bool:
        """Whether each row with tokens is alone in its lane."""
        shared = self.prefix_B.any() | self.suffix_start_B[row_N].any()
        return not bool(shared)

    def place(self, row_N: torch.Tensor, number_N: torch.Tensor) -> torch.Tensor:
        """Places in their lanes [N] of the `number_N`-th tokens of rows `row_N`."""
        prefix_N = self.prefix_B[row_N]
        behind_N = self.suffix_start_B[row_N] + number_N - prefix_N
        return torch.where(number_N < prefix_N, self.prefix_start_B[row_N] + number_N, behind_N)


def model_width(module: Any) -> int:
    """Entries of a hidden state of a model with transformers' `config`."""
    return int(module.config.get_text_config().hidden_size)


def pack_rows(
    micro_batch: TensorDict, *, width: int, share_prompts: bool, alone: bool = False
) -> PackedRows:
    """Pack the rows of a micro-batch into lanes.

    If no token is scored, one token is packed, which `put_back` leaves out: on several ranks the
    model must run, even for padding rows.

    Args:
        micro_batch: `input_ids` and `attention_mask` [B, P + T], `responses` and `response_mask`
            [B, T], padded on any side.
        width: D, entries of a hidden state; lanes have a quarter of it in tokens, or the length of
            the longest group.
        share_prompts: Compute a prompt once for the rows that have it; the model must support a
            mask.
        alone: One row a lane, for a model that does not keep the texts of a lane apart.

    Raises:
        TensorError: Columns that are missing or disagree, or a response without a token before it.
    """
    rows = _needed(micro_batch)
    row_M, token_M = rows.kept_BT.nonzero().unbind(1)
    if len(row_M) == 0:
        return _one_token(micro_batch["responses"], rows.kept_BT)
    number_BS = rows.present_BS.long().cumsum(1) - 1
    column_M = rows.first + token_M
    predictor_M = number_BS[row_M, column_M] - 1
    if not bool(rows.present_BS[row_M, column_M].all()) or int(predictor_M.min()) < 0:
        raise TensorError(
            "A scored token is padding (attention_mask is 0), or is the first of its row: nothing "
            "predicts it."
        )

    groups = rows.groups(width=width) if share_prompts else _single_rows(rows.needed_BS)
    lane_length = None if alone else max(1, width // 4)
    layout = _lay_out(groups, lane_length=lane_length, device=rows.ids_BS.device)
    row_N, column_N = rows.needed_BS.nonzero().unbind(1)
    number_N = number_BS[row_N, column_N]
    target = (layout.lane_B[row_N], layout.place(row_N, number_N))
    empty_LS = rows.ids_BS.new_zeros((layout.lanes, layout.length))
    sees = None
    if layout.one_row_a_lane(row_N):
        # Padding continues the row, and no earlier token attends to it. No text then begins within
        # a lane, so the model attends without a mask, with torch's fastest kernel.
        positions_LS = torch.arange(layout.length, device=row_N.device).expand_as(empty_LS)
    else:  # padding has position 0, so each padding token is a separate text
        positions_LS = empty_LS.index_put(target, number_N)
        sees = _lane_mask(layout, row_N, number_N, target) if share_prompts else None
    return PackedRows(
        input_ids_LS=empty_LS.index_put(target, rows.ids_BS[row_N, column_N]),
        position_ids_LS=positions_LS,
        sees=sees,
        lane_M=layout.lane_B[row_M],
        place_M=layout.place(row_M, predictor_M),
        tokens_M=micro_batch["responses"][row_M, token_M],
        row_M=row_M,
        token_M=token_M,
        kept_BT=rows.kept_BT,
        row_N=row_N,
        column_N=column_N,
        target_N=target,
    )


def prompt_groups(batch: TensorDict, budget: int, *, width: int) -> list[RowGroup]:
    """Rows with one prompt as a group that a micro-batch does not split.

    See `siirl.engine.training.batch_cuts.PrefixGrouping`.
    """
    return [
        RowGroup(rows=group.rows, tokens=group.tokens)
        for group in _needed(batch).groups(width=width, most_tokens=budget)
    ]


def padded_groups(batch: TensorDict, budget: int) -> list[RowGroup]:
    """Rows of similar length that fit into a micro-batch with one row a lane, padding included.

    See `siirl.engine.training.batch_cuts.PrefixGrouping`. Each group counts as the whole budget, so
    that a micro-batch has one of them; a row above the budget counts as it is.
    """
    lengths_B = row_lengths(batch)
    groups: list[list[int]] = []
    for row in lengths_B.argsort(descending=True).tolist():
        longest = int(lengths_B[groups[-1][0]]) if groups else 0
        if not groups or (len(groups[-1]) + 1) * longest > budget:
            groups.append([])
        groups[-1].append(row)
    return [
        RowGroup(rows=tuple(group), tokens=max(budget, int(lengths_B[group[0]])))
        for group in groups
    ]


def prefix_groups_of(module: Any) -> PrefixGrouping | None:
    """The `PrefixGrouping` of a `siirl.models.language_model.LanguageModel`; None if its rows are
    packed and each has its own prompt.
    """
    if not module.packs:
        return padded_groups
    if not module.shares_prompts:
        return None
    return functools.partial(prompt_groups, width=model_width(module))


def _needed(micro_batch: TensorDict) -> _Rows:
    missing = [name for name in COLUMNS if name not in micro_batch]
    if missing:
        known = ", ".join(map(str, micro_batch.keys()))
        raise TensorError(f"A batch of texts needs the column {missing[0]!r}; it has: {known}.")
    shapes = {name: list(micro_batch[name].shape) for name in COLUMNS}
    whole = shapes["input_ids"]
    response = shapes["responses"]
    if (
        shapes["attention_mask"] != whole
        or shapes["response_mask"] != response
        or len(whole) != 2
        or response[1] > whole[1]
    ):
        raise TensorError(
            f"Columns of texts do not fit each other: {shapes}; expected [B, P + T] twice, then "
            "[B, T] twice."
        )
    ids_BS = micro_batch["input_ids"]
    present_BS = as_bool_mask(micro_batch["attention_mask"], name="attention_mask")
    kept_BT = as_bool_mask(micro_batch["response_mask"])
    columns_S = torch.arange(whole[1], device=ids_BS.device)
    last_B = (
        columns_S[whole[1] - response[1] :].where(kept_BT, 0).amax(1)
        if response[1]
        else columns_S.new_zeros(whole[0])
    )
    return _Rows(
        ids_BS=ids_BS,
        present_BS=present_BS,
        kept_BT=kept_BT,
        needed_BS=present_BS & (columns_S < last_B[:, None]),
        picture_B=micro_batch.get("picture_number", None),
    )


def _single_rows(needed_BS: torch.Tensor) -> list[PrefixGroup]:
    return [
        PrefixGroup(rows=(row,), prefix=0, suffixes=(length,))
        for row, length in enumerate(needed_BS.sum(1).tolist())
    ]


def _lay_out(
    groups: Sequence[PrefixGroup], *, lane_length: int | None, device: torch.device
) -> _Layout:
    """Place groups in lanes, longest first; a group is its prefix, followed by its rows. Without a
    `lane_length` each has a lane.
    """
    lengths = [group.tokens for group in groups]
    parts = (
        [[number] for number in range(len(groups))]
        if lane_length is None
        else first_fit_decreasing(lengths, max(lane_length, *lengths))
    )
    placed: dict[int, tuple[int, int, int, int, int]] = {}
    longest = 0
    for lane, part in enumerate(parts):
        start = 0
        for number in part:
            group = groups[number]
            suffix_start = start + group.prefix
            for row, suffix in zip(group.rows, group.suffixes, strict=True):
                placed[row] = (lane, group.prefix, start, suffix_start, number)
                suffix_start += suffix
            start += group.tokens
        longest = max(longest, start)
    lane_B, prefix_B, prefix_start_B, suffix_start_B, group_B = torch.tensor(
        [placed[row] for row in range(len(placed))], device=device
    ).T
    return _Layout(
        lane_B, prefix_B, prefix_start_B, suffix_start_B, group_B, lanes=len(parts), length=longest
    )


def _lane_mask(
    layout: _Layout,
    row_N: torch.Tensor,
    number_N: torch.Tensor,
    target: tuple[torch.Tensor, torch.Tensor],
) -> LaneMask:
    shared_N = len(layout.lane_B) + layout.group_B[row_N]  # a number that no row uses
    owner_N = torch.where(number_N < layout.prefix_B[row_N], shared_N, row_N)
    padding_LS = row_N.new_full((layout.lanes, layout.length), PADDING_OWNER)
    return LaneMask(
        owner_LS=padding_LS.index_put(target, owner_N),
        prefix_LS=padding_LS.index_put(target, shared_N),
        shared=bool(layout.prefix_B.any()),
    )


def _one_token(responses_BT: torch.Tensor, kept_BT: torch.Tensor) -> PackedRows:
    zero_1 = responses_BT.new_zeros(1)
    return PackedRows(
        input_ids_LS=zero_1[None],
        position_ids_LS=zero_1[None],
        sees=None,
        lane_M=zero_1,
        place_M=zero_1,
        tokens_M=zero_1,
        row_M=zero_1,
        token_M=zero_1,
        kept_BT=kept_BT,
        row_N=zero_1[:0],
        column_N=zero_1[:0],
        target_N=(zero_1[:0], zero_1[:0]),
    )
