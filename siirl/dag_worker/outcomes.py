"""What a reward manager is shown of a step, and what it says of this rank's rows.

Trajectory rewards are computed from all ranks' outcomes on every rank: clusters of successes need
them all, and the memory of the reward stays the same everywhere. Only names, flags, scalars and
embeddings travel; images stay. Texts stay, too: their rewards look at one episode at a time, so
each rank scores its own.
"""

# B episode (of all ranks, sorted by uid, or of this rank), R row of this rank

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from siirl.data_coordinator.protocol.batch import texts
from siirl.engine.reward_manager import EpisodeOutcomes, RewardManager
from siirl.engine.reward_manager.text_rewards import TEXT_COLUMNS
from siirl.engine.training.collectives import Collectives
from siirl.errors import TooManyFailures

ALWAYS, WHERE_THERE = ("index", "complete", "env_return"), ("video_embedding", "oracle_distance")


def gather_outcomes(batch: TensorDict, *, ranks: Collectives) -> EpisodeOutcomes:
    """Outcomes of all ranks, sorted by uid, so that they are the same whatever the number of ranks."""
    present = [name for name in (*ALWAYS, *WHERE_THERE) if name in batch.keys()]
    parts = ranks.gather_objects(
        {
            "uid": texts(batch, "uid") if len(batch) else [],
            "task_name": texts(batch, "task_name") if len(batch) else [],
            **{name: batch[name].numpy() for name in present},
        }
    )
    uids = [uid for part in parts for uid in part["uid"]]
    names = [name for part in parts for name in part["task_name"]]
    order = np.argsort(uids)
    columns = {name: np.concatenate([part[name] for part in parts])[order] for name in present}
    return EpisodeOutcomes(
        uid_B=[uids[i] for i in order],
        task_name_B=[names[i] for i in order],
        index_B=columns["index"],
        complete_B=columns["complete"],
        env_return_B=columns["env_return"],
        video_embedding_BD=columns.get("video_embedding"),
        oracle_distance_B=columns.get("oracle_distance"),
        total=len(uids),
    )


def own_outcomes(batch: TensorDict, *, ranks: Collectives) -> EpisodeOutcomes:
    """Outcomes of this rank, in the order of its batch, with the texts that it has."""
    attention_mask, rows = batch.get("attention_mask"), len(batch)
    return EpisodeOutcomes(
        uid_B=texts(batch, "uid") if rows else [],
        task_name_B=texts(batch, "task_name") if rows else [],
        index_B=batch["index"].numpy(),
        complete_B=batch["complete"].numpy(),
        env_return_B=batch["env_return"].numpy(),
        video_embedding_BD=None,
        oracle_distance_B=None,
        texts_B={
            name: texts(batch, name) if rows else []
            for name in TEXT_COLUMNS
            if name in batch.keys()
        },
        response_length_B=None
        if attention_mask is None
        else attention_mask[:, -batch["responses"].shape[1] :].sum(dim=1).long().numpy(),
        graded_B=None if "graded" not in batch.keys() else batch["graded"].numpy(),
        total=int(ranks.sum(torch.tensor(float(rows)))),
    )


@dataclass(frozen=True)
class RowScores:
    """What the reward says of this rank's rows, in their order."""

    reward_R: torch.Tensor
    """float32; without meaning where the row failed."""
    penalty_R: torch.Tensor
    """Added to what is trained on, float32; 0 where there is none."""
    env_weight_R: torch.Tensor
    """How much of the environment's return is in `reward_R`, float32; see
    `RewardScores.env_weight_B`.
    """
    failed: Mapping[int, str]
    """Rows that could not be scored, with the reason."""
    parts: Mapping[str, NDArray[np.float32]]
    """Summands of the reward [R], NaN where a row has none."""
    metrics: Mapping[str, float]
    """Of all ranks together."""
    reward_by_uid: Mapping[str, float]
    """Of all ranks' rows that could be scored."""


def score_rows(batch: TensorDict, *, reward: RewardManager, ranks: Collectives) -> RowScores:
    """Have this rank's rows scored, beside those of all ranks where the reward must see them; every
    rank calls it.
    """
    outcomes = (
        gather_outcomes(batch, ranks=ranks)
        if reward.looks_at_all_ranks
        else own_outcomes(batch, ranks=ranks)
    )
    scores = reward.score(outcomes)
    uids = texts(batch, "uid") if len(batch) else []
    reasons = {outcomes.uid_B[position]: reason for position, reason in scores.failed.items()}
    seen = {
        uid: float(score)
        for uid, score in zip(outcomes.uid_B, scores.reward_B, strict=True)
        if uid not in reasons
    }
    by_uid = (
        seen
        if reward.looks_at_all_ranks
        else dict(itertools.chain(*(part.items() for part in ranks.gather_objects(seen))))
    )
    penalty_B, env_weight_B = (
        np.zeros_like(scores.reward_B) if column_B is None else column_B
        for column_B in (scores.penalty_B, scores.env_weight_B)
    )
    return RowScores(
        reward_R=torch.from_numpy(rows_of_rank(scores.reward_B, outcomes, uids)),
        penalty_R=torch.from_numpy(rows_of_rank(penalty_B, outcomes, uids)),
        env_weight_R=torch.from_numpy(rows_of_rank(env_weight_B, outcomes, uids)),
        failed={row: reasons[uid] for row, uid in enumerate(uids) if uid in reasons},
        parts={
            name: rows_of_rank(values_B, outcomes, uids) for name, values_B in scores.parts.items()
        },
        metrics=scores.metrics,
        reward_by_uid=by_uid,
    )


def check_reward_failures(
    failed: Mapping[int, str], *, rows: int, max_failed_share: float, ranks: Collectives
) -> None:
    """Go on if at most `max_failed_share` of all ranks' rows could not be scored, and some could;
    every rank calls it.

    Args:
        failed: This rank's rows that could not, with the reason.
        rows: This rank's rows.
        max_failed_share: `reward.max_failed_share`.
        ranks: The processes that share the step.

    Raises:
        TooManyFailures: With the first reason; the same on every rank.
    """
    counts, totals, firsts = zip(
        *ranks.gather_objects((len(failed), rows, list(failed.values())[:1])), strict=True
    )
    if sum(counts) == 0 or (
        sum(counts) <= max_failed_share * sum(totals) and sum(counts) < sum(totals)
    ):
        return
    raise TooManyFailures(
        f"{sum(counts)} of {sum(totals)} samples could not be scored, more than reward.max_failed_share={max_failed_share} allows or all "
        f"of them. The first: {next(itertools.chain(*firsts))}"
    )


def rows_of_rank(
    values_B: NDArray[np.float32], outcomes: EpisodeOutcomes, uids: Sequence[str]
) -> NDArray[np.float32]:
    """The entries of `values_B` (one an outcome) that belong to `uids`, in their order."""
    place = {uid: i for i, uid in enumerate(outcomes.uid_B)}
    return values_B[[place[uid] for uid in uids]] if len(uids) else values_B[:0]
