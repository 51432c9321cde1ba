"""The outcomes of all ranks' episodes in one order, and this rank's part of a result in the order of its own batch.

Rewards are computed from all ranks' outcomes on every rank: clusters of successes need them all, and the memory of the reward stays the
same everywhere. Only names, flags, scalars and embeddings travel; images stay.
"""

# B episode (of all ranks, sorted by uid)

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDict

from siirl.data_coordinator.protocol.batch import texts
from siirl.engine.collectives import Collectives
from siirl.engine.reward_manager import EpisodeOutcomes

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
    )


def rows_of_rank(values_B: NDArray[np.float32], outcomes: EpisodeOutcomes, uids: Sequence[str]) -> NDArray[np.float32]:
    """The entries of `values_B` (one an outcome) that belong to `uids`, in their order."""
    place = {uid: i for i, uid in enumerate(outcomes.uid_B)}
    return values_B[[place[uid] for uid in uids]] if len(uids) else values_B[:0]
