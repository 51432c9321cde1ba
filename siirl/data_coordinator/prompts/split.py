"""Splits rows into training and held-out ones, and counts excluded rows by reason.

Pure functions of the indices.
"""

# N row of the training files, M row of the validation files

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from siirl.data_coordinator.prompts.index import PromptIndex
from siirl.errors import ConfigError


@dataclass(frozen=True)
class PromptSplit:
    """Ascending row numbers, and counts of excluded rows."""

    train_rows: NDArray[np.int64]
    heldout_rows: NDArray[np.int64]
    """Rows of the validation files if there are any, else of the training files."""
    too_long: int
    """Training prompts of more than `data.max_prompt_length` tokens: left out, or cut."""
    too_long_heldout: int
    also_held_out: int
    """Rows of the training files whose question is also in the validation files: not trained on."""
    nearly_held_out: int = 0
    """Training rows that differ from a held-out one only in case or blanks."""


def split_prompts(
    train: PromptIndex,
    *,
    validation: PromptIndex | None,
    heldout_share: float,
    max_prompt_length: int,
    overlong: str,
) -> PromptSplit:
    """Divide the rows.

    Args:
        train: The training files.
        validation: The validation files; None: a share of the training files is held out, by the
            hash of the question.
        heldout_share: Share of all questions; read if there are no validation files.
        max_prompt_length: Tokens.
        overlong: `filter` leaves longer prompts out; `cut` keeps them, and the rollout takes their
            last tokens.

    Raises:
        ConfigError: No training prompt is left.
    """
    held_N = (
        _held_out(train.question_N, share=heldout_share)
        if validation is None
        else np.isin(train.question_N, validation.question_N)
    )
    long_N = train.length_N > max_prompt_length
    source = train if validation is None else validation
    candidates_M = held_N if validation is None else np.ones(len(validation), bool)
    long_M = source.length_N > max_prompt_length
    keeps_long = overlong == "cut"
    train_rows = np.flatnonzero(~held_N & (~long_N | keeps_long))
    if not len(train_rows):
        by_files = validation is not None
        raise ConfigError(_nothing_left(train, held_N, max_prompt_length, by_files=by_files))
    heldout_rows = np.flatnonzero(candidates_M & (~long_M | keeps_long))
    return PromptSplit(
        train_rows=train_rows,
        heldout_rows=heldout_rows,
        too_long=int((long_N & ~held_N).sum()),
        too_long_heldout=int((long_M & candidates_M).sum()),
        also_held_out=0 if validation is None else int(held_N.sum()),
        nearly_held_out=int(
            np.isin(train.wording_N[train_rows], source.wording_N[heldout_rows]).sum()
        ),
    )


def check_lengths(*, max_prompt_length: int, max_response_length: int, model_length: int) -> None:
    """Refuse prompts and responses that the model cannot hold.

    Raises:
        ConfigError: With the lengths and the remedy.
    """
    if max_prompt_length + max_response_length > model_length:
        raise ConfigError(
            f"data.max_prompt_length={max_prompt_length} + "
            f"data.max_response_length={max_response_length} = "
            f"{max_prompt_length + max_response_length} tokens, but the model's context has "
            f"{model_length}: reduce them by "
            f"{max_prompt_length + max_response_length - model_length}, or use a model with a "
            "longer context."
        )


def nothing_held_out(question_N: NDArray[np.uint64], *, too_long: int) -> ConfigError:
    """Refuse an evaluation without held-out prompts.

    Args:
        question_N: Hashes of the questions to train on.
        too_long: Held-out prompts that were left out by their length.
    """
    if too_long:
        return ConfigError(
            "trainer.val_episodes asks for an evaluation, but every held-out prompt is longer than "
            "data.max_prompt_length: raise it, or use data.overlong_prompts=cut, or "
            "trainer.val_episodes=0."
        )
    # a larger share could only hold out a single question, and leave none to train on
    share = "a larger data.heldout_share, " if len(np.unique(question_N)) > 1 else ""
    return ConfigError(
        "trainer.val_episodes asks for an evaluation, but no prompt is held out: give "
        f"data.val_files, {share}or trainer.val_episodes=0."
    )


def describe_split(split: PromptSplit, *, max_prompt_length: int, overlong: str) -> str:
    """Summary of the split, in one line for the console."""
    count = len(split.train_rows)
    parts = [f"{_prompts(count)} to train on, {len(split.heldout_rows)} held out"]
    if split.too_long or split.too_long_heldout:
        done = "left out" if overlong == "filter" else "cut from the left"
        parts.append(
            f"{split.too_long} training and {split.too_long_heldout} held-out prompts of more than "
            f"data.max_prompt_length={max_prompt_length} tokens are {done}"
        )
    if split.also_held_out:
        parts.append(
            f"{split.also_held_out} training prompts are left out because they are also held out"
            if split.also_held_out > 1
            else "1 training prompt is left out because it is also held out"
        )
    return "; ".join(parts) + "."


def counts_of(split: PromptSplit) -> Mapping[str, float]:
    """The counts as metrics."""
    return {
        "data/prompts": float(len(split.train_rows)),
        "data/prompts_too_long": float(split.too_long),
        "data/heldout_prompts_too_long": float(split.too_long_heldout),
        "data/prompts_also_held_out": float(split.also_held_out),
        "data/prompts_nearly_held_out": float(split.nearly_held_out),
    }


def _held_out(question_N: NDArray[np.uint64], *, share: float) -> NDArray[np.bool_]:
    """The rule of `envs.math.generators.held_out`, hash < share x 2**64, on integers."""
    if share <= 0:
        return np.zeros(len(question_N), bool)
    limit = int(np.ceil(share * 2**64))
    held_N: NDArray[np.bool_] = question_N <= np.uint64(min(limit - 1, 2**64 - 1))
    return held_N


def _prompts(count: int) -> str:
    return f"{count} prompt{'' if count == 1 else 's'}"


def _nothing_left(
    train: PromptIndex, held_N: NDArray[np.bool_], max_prompt_length: int, *, by_files: bool
) -> str:
    if held_N.all():
        only = len(train) == 1
        which = "The only prompt" if only else f"All {len(train)} prompts"
        where = "also in data.val_files" if by_files else "held out"
        remedy = "other files" if by_files else "other files, or a smaller data.heldout_share"
        return f"{which} of data.train_files {'is' if only else 'are'} {where}: give {remedy}."
    shortest = int(train.length_N[~held_N].min())
    return (
        f"Every training prompt is longer than data.max_prompt_length={max_prompt_length} tokens "
        f"(the shortest has {shortest}): "
        "raise it, or use data.overlong_prompts=cut."
    )
