"""Ranks that are threads of one process: the collectives of formulas without further processes."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch


class _Exchange:
    """Gathers the values of threads and gives all of them to each."""

    def __init__(self, size: int) -> None:
        self.barrier, self.things = threading.Barrier(size), [None] * size

    def all(self, rank: int, thing: Any) -> list[Any]:
        self.things[rank] = thing
        self.barrier.wait()
        everything = list(self.things)
        self.barrier.wait()
        return everything


class ThreadRanks:
    """One of them; see `siirl.algos.ranks.Ranks`."""

    def __init__(self, exchange: _Exchange, rank: int, size: int) -> None:
        self.exchange, self.rank, self.size = exchange, rank, size

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.exchange.all(self.rank, tensor)).sum(0)

    def gather_rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        parts = self.exchange.all(self.rank, rows)
        start = sum(len(part) for part in parts[: self.rank])
        return torch.cat(parts), slice(start, start + len(rows))


def on_threads(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Results of `function(ranks, *arguments[rank])`, with one rank for each entry of `arguments`."""
    exchange, results = _Exchange(len(arguments)), [None] * len(arguments)

    def work(rank: int) -> None:
        try:
            results[rank] = function(ThreadRanks(exchange, rank, len(arguments)), *arguments[rank])
        except BaseException:
            exchange.barrier.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
