"""Rewards of a step's rows: the reward manager's inputs and results, and their placement at tokens.

Every rank computes the trajectory rewards from the outcomes of all ranks: clusters of successes
need all of them, and the reward's memory stays equal on all ranks. Only names, flags, scalars and
embeddings are exchanged. Images and texts stay on their rank; text rewards score one episode at a
time.

A custom node's reward may have the shape of `attention_mask` (prompt and response) with the score
in the last column, which is padding in shorter responses. Estimators need [B, T] of the response,
with 0 at tokens that the policy did not choose. Such rewards are moved to the last chosen token of
their row, which keeps the row's sum.
"""

# B episode (of all ranks, sorted by uid, or of this rank), R row of this rank, T token

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from siirl.algos.kl import kl_estimate
from siirl.algos.tensor_checks import as_bool_mask
from siirl.algos.trajectories import reward_at_finish
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.metric_worker import plain_record
from siirl.data_coordinator.protocol.batch import texts
from siirl.engine.reward_manager import EpisodeOutcomes, RewardManager, RewardScores
from siirl.engine.reward_manager.text_parts import TEXT_COLUMNS
from siirl.engine.training.collectives import Collectives
from siirl.errors import InvariantError, TensorError, TooManyFailures
from siirl.reporting.metrics import Unusable, Value

logger = logging.getLogger(__name__)

REWARD_COLUMNS = ("token_level_scores", "token_level_rewards")
_warned: set[str] = set()
RewardOutcome = tuple[EpisodeOutcomes, RewardScores]
"""A scored batch and its scores."""
ALWAYS = ("index", "complete", "env_return")
WHERE_THERE = ("video_embedding", "oracle_distance")


def gather_outcomes(batch: TensorDict, *, ranks: Collectives) -> EpisodeOutcomes:
    """Outcomes of all ranks, sorted by uid: the order is independent of the number of ranks."""
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
    """Outcomes of this rank in batch order, with their texts."""
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
        else attention_mask[:, -batch["response_mask"].shape[1] :].sum(dim=1).long().numpy(),
        graded_B=None if "graded" not in batch.keys() else batch["graded"].numpy(),
        total=int(ranks.sum(torch.tensor(float(rows)))),
    )


@dataclass(frozen=True)
class RowScores:
    """Reward results of this rank's rows, in batch order."""

    reward_R: torch.Tensor
    """float32; meaningless in failed rows."""
    penalty_R: torch.Tensor
    """float32; added to the training reward, 0 without a penalty."""
    env_weight_R: torch.Tensor
    """float32; weight of the environment's return in `reward_R` (`RewardScores.env_weight_B`)."""
    failed: Mapping[int, str]
    """Rows that could not be scored, with reasons."""
    parts: Mapping[str, NDArray[np.float32]]
    """Summands of the reward [R], NaN where a row has none."""
    metrics: Mapping[str, Value]
    """Metrics over all ranks."""
    reward_by_uid: Mapping[str, float]
    """Rewards of all ranks' scored rows."""


def outcomes_to_score(
    batch: TensorDict, *, reward: RewardManager, ranks: Collectives
) -> EpisodeOutcomes:
    """The arguments of `reward.score` on this rank; every rank must call this function."""
    gather = gather_outcomes if reward.looks_at_all_ranks else own_outcomes
    return gather(batch, ranks=ranks)


def score_rows(
    batch: TensorDict,
    *,
    reward: RewardManager,
    ranks: Collectives,
    started: RewardOutcome | None = None,
) -> RowScores:
    """Score this rank's rows, together with all ranks' rows if the reward needs them.

    `started` has the scores if they were computed ahead. Every rank must call it.
    """
    if started is None:
        outcomes = outcomes_to_score(batch, reward=reward, ranks=ranks)
        scores = reward.score(outcomes)
    else:
        outcomes, scores = started
    _require_unique(outcomes.uid_B)
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
    parts, others = columns_of_parts(scores.parts, count=len(outcomes.uid_B))
    return RowScores(
        reward_R=torch.from_numpy(rows_of_rank(scores.reward_B, outcomes, uids)),
        penalty_R=torch.from_numpy(rows_of_rank(penalty_B, outcomes, uids)),
        env_weight_R=torch.from_numpy(rows_of_rank(env_weight_B, outcomes, uids)),
        failed={row: reasons[uid] for row, uid in enumerate(uids) if uid in reasons},
        parts={name: rows_of_rank(values_B, outcomes, uids) for name, values_B in parts.items()},
        metrics={**plain_record(scores.metrics), **others},
        reward_by_uid=by_uid,
    )


def _require_unique(uids: Sequence[str]) -> None:
    [(uid, count)] = Counter(uids).most_common(1) or [("", 0)]
    if count > 1:
        raise InvariantError(
            f"{count} rows have the uid {uid!r}, which must be unique, because it assigns rewards "
            "to rows. A node before the reward changed the column uid, or repeated rows: repeat "
            "them after the reward."
        )


def columns_of_parts(
    parts: Any, *, count: int
) -> tuple[dict[str, NDArray[np.float32]], dict[str, Value]]:
    """Parts of a user's reward: columns [B], and metrics for parts that are not `count` numbers. A
    part is only logged, so it may have any value.
    """
    columns: dict[str, NDArray[np.float32]] = {}
    others: dict[str, Value] = {}
    for name, value in plain_record(parts).items():
        if not isinstance(value, list):
            others[part_metric(name)] = value
        elif len(value) == count:
            columns[name] = np.array(value, np.float32)
        else:
            others[part_metric(name)] = Unusable(f"a list of {len(value)} for {count} episodes")
    return columns, others


def part_metric(name: str) -> str:
    """Name of the metric of a part of the reward."""
    return f"reward/part/{name}"


def check_reward_failures(
    failed: Mapping[int, str], *, rows: int, max_failed_share: float, ranks: Collectives
) -> None:
    """Check that some rows were scored and at most `max_failed_share` failed, over all ranks.

    Every rank must call it.

    Args:
        failed: This rank's rows without a score, with the reason.
        rows: Number of this rank's rows.
        max_failed_share: `reward.max_failed_share`.
        ranks: The processes that share the step.

    Raises:
        TooManyFailures: Reports the first reason; the same on every rank.
    """
    counts, totals, firsts = zip(
        *ranks.gather_objects((len(failed), rows, list(failed.values())[:1])), strict=True
    )
    if sum(counts) == 0 or (
        sum(counts) <= max_failed_share * sum(totals) and sum(counts) < sum(totals)
    ):
        return
    raise TooManyFailures(
        f"{sum(counts)} of {sum(totals)} samples could not be scored; at most "
        f"reward.max_failed_share={max_failed_share} of them may fail, and never all. The first: "
        f"{next(itertools.chain(*firsts))}"
    )


def rows_of_rank(
    values_B: NDArray[np.float32], outcomes: EpisodeOutcomes, uids: Sequence[str]
) -> NDArray[np.float32]:
    """Entries of `values_B` (one per outcome) for `uids`, in their order."""
    place = {uid: i for i, uid in enumerate(outcomes.uid_B)}
    return values_B[[place[uid] for uid in uids]] if len(uids) else values_B[:0]


def place_rewards(batch: TensorDict, *, before: TensorDict) -> None:
    """Move new or changed reward columns of `batch` to the policy's tokens.

    `before` is the node's input.

    Raises:
        TensorError: A column has neither the response's shape nor that of prompt and response.
    """
    if "response_mask" not in batch.keys():
        return
    for name in REWARD_COLUMNS:
        if name in batch.keys() and batch[name] is not before.get(name, None):
            batch[name] = rewards_at_tokens(
                batch[name],
                mask_BT=batch["response_mask"],
                sequence_mask=batch.get("attention_mask", None),
                name=name,
            )


def rewards_at_tokens(
    rewards: torch.Tensor, *, mask_BT: torch.Tensor, sequence_mask: torch.Tensor | None, name: str
) -> torch.Tensor:
    """Rewards [B, T] with the row sums of `rewards`, and 0 where the mask is 0.

    Args:
        rewards: [B, T] of the response, or [B, L] of prompt and response.
        mask_BT: 1 at the tokens that the policy chose.
        sequence_mask: [B, L]; text only.
        name: Column name for errors and warnings.

    Raises:
        TensorError: The shape is neither.
    """
    shapes = [list(mask.shape) for mask in (mask_BT, sequence_mask) if mask is not None]
    if list(rewards.shape) not in shapes:
        raise TensorError(
            f"{name} has shape {list(rewards.shape)}: expected one reward per token, "
            f"{' or '.join(map(str, shapes))}."
        )
    if not rewards.is_floating_point():
        _warn_of_whole_numbers(name, str(rewards.dtype))
        rewards = rewards.float()
    kept_BT = as_bool_mask(mask_BT)
    of_response_BT = rewards[:, rewards.shape[1] - mask_BT.shape[1] :]
    at_tokens_BT = torch.where(kept_BT, of_response_BT, torch.zeros_like(of_response_BT))
    elsewhere_B = rewards.double().sum(1) - at_tokens_BT.double().sum(1)
    if not bool((elsewhere_B.abs() > 0).any()):
        return at_tokens_BT
    return at_tokens_BT + reward_at_finish(rewards_B=elsewhere_B.to(rewards.dtype), mask_BT=mask_BT)


def _warn_of_whole_numbers(name: str, dtype: str) -> None:
    if name not in _warned:
        _warned.add(name)
        logger.warning(
            "%s has dtype %s, which stores a score of 0.5 as 0: create the tensor with "
            "dtype=torch.float32.",
            name,
            dtype,
        )


def token_scores(
    batch: TensorDict, *, reward_B: torch.Tensor, env_weight_B: torch.Tensor
) -> torch.Tensor:
    """Token scores [B, T] that sum to each trajectory's reward.

    The environment's return is placed where it was earned: at the last token of each turn or action
    chunk, so that GAE and discounted returns see its position. Outcome estimators sum the row. The
    rest of the reward goes to the last executed token; so does the whole reward if a custom
    workflow leaves out the column `env_rewards`.
    """
    if "env_rewards" not in batch.keys():
        return reward_at_finish(rewards_B=reward_B, mask_BT=batch["response_mask"])
    earned_BT = env_weight_B[:, None] * batch["env_rewards"]
    # in float64: if the reward is the return alone, the rest is at most its rounding error
    rest_B = reward_B - earned_BT.double().sum(1)
    return earned_BT + reward_at_finish(rewards_B=rest_B.float(), mask_BT=batch["response_mask"])


def less_kl(batch: TensorDict, context: StageContext) -> tuple[torch.Tensor, dict[str, Value]]:
    """Token rewards [B, T] minus the KL to the reference; the coefficient adapts to the mean KL."""
    mask_BT, ranks = batch["response_mask"], context.ranks
    kl_BT = kl_estimate(
        log_probs_BT=batch["old_log_probs"],
        ref_log_probs_BT=batch["ref_log_prob"],
        mask_BT=mask_BT,
        name=context.config.algorithm.kl_penalty,
    )
    coefficient = context.kl_controller.value
    total, tokens, rows = ranks.sum(
        torch.stack([kl_BT.double().sum(), mask_BT.double().sum(), torch.tensor(float(len(batch)))])
    ).tolist()
    current = total / max(tokens, 1.0)
    context.kl_controller.update(current_kl=current, n_steps=int(rows))
    metrics: dict[str, Value] = {"actor/reward_kl_penalty": current, "actor/kl_coef": coefficient}
    return batch["token_level_scores"] - coefficient * kl_BT, metrics
