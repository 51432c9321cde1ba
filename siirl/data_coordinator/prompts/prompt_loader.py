"""This rank's view of the stream of prompts, with `draw` and a state, like
`data_coordinator.task_stream.TaskLoader`.

The state is one position in the stream of all ranks, the same on every rank: a run can resume in
the middle of an epoch, and with another number of ranks or prompts per step. Rows are read a few
hundred at a time, because a pass over a parquet file costs the same for one row as for many. With
`num_workers`, other processes read ahead.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envs.seeds import FIRST_TRAINING_SEED
from siirl.data_coordinator.prompts.dataset import PartitionedRLHFDataset, Prompts, PromptTask
from siirl.data_coordinator.prompts.index import Encode, Gather, build_index
from siirl.data_coordinator.prompts.joined_files import CheckRow, check_truth, open_prompt_files
from siirl.data_coordinator.prompts.read_ahead import in_batches
from siirl.data_coordinator.prompts.split import (
    counts_of,
    describe_split,
    nothing_held_out,
    split_prompts,
)
from siirl.data_coordinator.task_stream import (
    LOADER_COLUMNS,
    SAME_OR_NEW,
    SEED_KEYS,
    Outcomes,
    check_prompts_per_step,
    other_stream,
)
from siirl.errors import CheckpointError, ConfigError
from siirl.params.data_args import DataArguments

logger = logging.getLogger(__name__)

PROMPT_LOADER_COLUMNS = LOADER_COLUMNS | {"prompt_row"}
"""Columns of `PromptTask.columns`, for `TaskGraph.check_columns(loader_columns=...)`."""

ROWS_AT_A_TIME = 512  # per rank: about a megabyte of text, and 8 steps of 64 prompts


class PromptLoader:
    """The training stream of prompts, seen from one rank.

    Args:
        dataset: The stream.
        prompts_per_step: `data.train_batch_size`, over all ranks.
        heldout: Prompts of the evaluation.
        num_workers: Processes that read ahead; 0: rows are read in this process when they are
            needed.
        counts: Counts of excluded rows, as metrics.

    Raises:
        ConfigError: Fewer prompts per step than ranks.
    """

    def __init__(
        self,
        dataset: PartitionedRLHFDataset,
        *,
        prompts_per_step: int,
        heldout: Prompts | None = None,
        num_workers: int = 0,
        counts: Mapping[str, float] | None = None,
    ) -> None:
        check_prompts_per_step(prompts_per_step, ranks=dataset.ranks)
        self.dataset, self.heldout = dataset, heldout
        self.prompts_per_step, self.num_workers = prompts_per_step, num_workers
        self.position = 0
        """Prompts that all ranks together have taken."""
        self._counts = dict(counts or {})
        self._stream: Iterator[PromptTask] | None = None
        self._known: dict[int, PromptTask] = {}

    @classmethod
    def of(
        cls,
        data: DataArguments,
        *,
        encode: Encode,
        check: CheckRow | None = None,
        rank: int = 0,
        ranks: int = 1,
        gather: Gather = lambda thing: [thing],
    ) -> "PromptLoader":
        """The loader of a job. Opens the files, indexes them together with the other ranks, and
        logs a summary; every rank calls it.

        Args:
            data: The `data` group.
            encode: Chat messages to the tokens of a prompt.
            check: The environment's check of a row (`EnvSpec.check_row`); None: it must have a
                ground truth.
            rank: This rank.
            ranks: Number of ranks.
            gather: Gathers an object of every rank.

        Raises:
            ConfigError: Invalid files, rows or lengths; the same on every rank.
            MissingAssetError: A missing file.
        """
        shared: dict[str, Any] = {
            "encode": encode,
            "check": check or check_truth,
            "rank": rank,
            "ranks": ranks,
            "gather": gather,
        }
        shared["num_workers"] = data.num_loader_workers
        files = open_prompt_files(data.train_files, key="data.train_files")
        index = build_index(files, **shared)
        heldout_files, heldout_index = files, index
        if data.val_files:
            heldout_files = open_prompt_files(data.val_files, key="data.val_files")
            heldout_index = build_index(heldout_files, **shared)
        split = split_prompts(
            index,
            validation=heldout_index if data.val_files else None,
            heldout_share=data.heldout_share,
            max_prompt_length=data.max_prompt_length,
            overlong=data.overlong_prompts,
        )
        if rank == 0:
            logger.warning(
                "%s",
                describe_split(
                    split, max_prompt_length=data.max_prompt_length, overlong=data.overlong_prompts
                ),
            )
        return cls(
            PartitionedRLHFDataset(
                Prompts.of(files, index, split.train_rows), seed=data.seed, rank=rank, ranks=ranks
            ),
            prompts_per_step=data.train_batch_size,
            heldout=Prompts.of(heldout_files, heldout_index, split.heldout_rows),
            num_workers=data.num_loader_workers,
            counts=counts_of(split),
        )

    def draw(self, count: int) -> list[PromptTask]:
        """This rank's share of the next `count` prompts; all ranks must request the same count
        (also in a refill).
        """
        first, self.position = self.position, self.position + count
        if self._stream is None:
            self._stream = self._read_from(first)
        return [next(self._stream) for _ in self.dataset.own_numbers(first, self.position)]

    def prompts_at(self, numbers: Sequence[int]) -> list[PromptTask]:
        """Prompts of the stream by number, for any rank; the position does not change.

        Rows are read in blocks, because the next requests are usually the following rows.
        """
        missing = [number for number in numbers if number not in self._known]
        if missing:
            ahead = range(min(missing), min(missing) + min(ROWS_AT_A_TIME, len(self.dataset)))
            wanted = sorted({*ahead, *missing})
            found = dict(zip(wanted, self.dataset.__getitems__(wanted), strict=True))
            self._known = {n: task for n, task in self._known.items() if n in numbers} | found
        return [self._known[number] for number in numbers]

    def observe(self, outcomes: Sequence[Outcomes]) -> None:
        """Do nothing: the order of the prompts does not depend on outcomes."""

    def metrics(self) -> dict[str, float]:
        """Position in the data and the questions left out; the same on every rank."""
        return {**self._counts, "data/epoch": self.passes()}

    def passes(self) -> float:
        """Passes over the files that all ranks together have finished."""
        return self.position / len(self.dataset)

    def state_dict(self) -> dict[str, Any]:
        """The global state: the same on every rank."""
        dataset = self.dataset
        return {
            "position": self.position,
            "seed": dataset.seed,
            "prompts": len(dataset),
            "questions": dataset.prompts.digest(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`, possibly with another number of ranks or prompts per step.

        Raises:
            CheckpointError: It belongs to a stream of other prompts or another seed.
        """
        own = self.state_dict()
        its_seed, its_count = state.get("seed"), state.get("prompts")
        if its_seed != own["seed"]:
            raise other_stream("seed", its=its_seed, own=own["seed"], setting=SEED_KEYS)
        if (its_count, state.get("questions")) != (own["prompts"], own["questions"]):
            raise CheckpointError(
                f"The checkpoint's run trains on {its_count} prompts, but this run on "
                f"{'other ' if its_count == own['prompts'] else ''}{own['prompts']}: other files "
                "(data.train_files, data.val_files), or other rows left out "
                "(data.max_prompt_length, data.overlong_prompts, data.heldout_share). "
                f"{SAME_OR_NEW}"
            )
        self.position = int(state["position"])
        self._stream = None

    def evaluation_prompts(
        self, *, prompts_per_source: int, rank: int = 0, ranks: int = 1
    ) -> list[PromptTask]:
        """This rank's share of an evaluation: the same `prompts_per_source` held-out prompts of
        each data source at every call.

        They are chosen by the hash of their question, independent of the run's seed and the order
        of the file.

        Raises:
            ConfigError: No held-out prompts, or more than evaluation seeds.
        """
        chosen = (
            [] if self.heldout is None else _first_of_each_source(self.heldout, prompts_per_source)
        )
        if self.heldout is None or not chosen:
            raise nothing_held_out(
                self.dataset.prompts.question_N,
                too_long=int(self._counts.get("data/heldout_prompts_too_long", 0)),
            )
        if len(chosen) > FIRST_TRAINING_SEED:
            raise ConfigError(
                f"{len(chosen)} held-out prompts exceed the seeds of an evaluation: lower "
                "trainer.val_episodes."
            )
        own = list(enumerate(chosen))[rank::ranks]
        rows = self.heldout.read([place for _, place in own])
        return [
            self.heldout.task(rows[place], place, seed=number, group_id=number)
            for number, place in own
        ]

    def close(self) -> None:
        """End the processes that read ahead; safe to call twice."""
        self._stream = None

    def _read_from(self, start: int) -> Iterator[PromptTask]:
        # at most one epoch of a small file
        size = min(ROWS_AT_A_TIME, -(-len(self.dataset) // self.dataset.ranks))
        batches = self.dataset.own_batches(start, size=size)
        for tasks in in_batches(self.dataset, batches=batches, num_workers=self.num_workers):
            yield from tasks


def _first_of_each_source(prompts: Prompts, count: int) -> list[int]:
    """Positions of up to `count` rows of each data source, sorted by the question's hash, with the
    sources taking turns.
    """
    by_hash = np.argsort(prompts.question_N, kind="stable")
    first = [
        by_hash[prompts.source_N[by_hash] == source][:count].tolist()
        for source in range(len(prompts.sources))
    ]
    in_turn = itertools.zip_longest(*first)
    return [place for turn in in_turn for place in turn if place is not None]
