"""Reads ahead in worker processes with torchdata's StatefulDataLoader; without workers, reads on
demand in this process.

Workers come from a fresh fork server, because a process with threads of Ray, pyarrow and torch
cannot be forked safely. The server imports torch once for all workers. Left out: the loader's own
state, which counts the rows that one rank has read; a run saves one position in the stream of all
ranks instead (`siirl.data_coordinator.prompts.prompt_loader`).
"""

import multiprocessing
import warnings
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader


def in_order(dataset: Any, *, num_workers: int) -> Iterator[Any]:
    """Every item of a map-style dataset, in order."""
    if not len(dataset):
        return iter(())
    return _read(dataset, batch_size=None, num_workers=num_workers)


def in_batches(
    dataset: Any, *, batches: Iterable[Sequence[int]], num_workers: int
) -> Iterator[Any]:
    """`dataset.__getitems__(batch)` for each batch of numbers, in order; they may be endless."""
    # One batch per process is read ahead: a batch already has hundreds of rows.
    return _read(
        dataset,
        batch_sampler=batches,
        num_workers=num_workers,
        prefetch_factor=1 if num_workers else None,
    )


def identity(items: Any) -> Any:
    """Identity collation: rows are texts."""
    return items


def _read(dataset: Any, *, num_workers: int, **options: Any) -> Iterator[Any]:
    with warnings.catch_warnings():
        # torchdata 0.11 calls it, torch 2.13 complains
        warnings.filterwarnings("ignore", "'set_vital' is deprecated", UserWarning)
        loader = StatefulDataLoader(
            dataset,
            num_workers=num_workers,
            collate_fn=identity,
            multiprocessing_context=_context(num_workers),
            # the loader draws a seed for its processes, which must not come from the run's
            # generator
            generator=torch.Generator(),
            **options,
        )
        return iter(loader)


def _context(num_workers: int) -> BaseContext | None:
    if num_workers == 0:
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__package__])  # preload what unpickling a dataset imports
    return context
