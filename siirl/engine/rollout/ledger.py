"""Ledger of a run that rolls out while it trains: which prompts are running, waiting and used.

Admission follows AReaL (arXiv 2505.24298, section 5.1): before version i + 1 of the policy exists,
at most (max_staleness + i + 1) x batch prompts have been started, not counting dropped ones. A used
sample is at most `max_staleness` versions old; 0 is lockstep. A prompt keeps its number in the
stream of prompts when it is started, finished and used, so every sample is accounted for:

    started = running + returned + finished + used + discarded

There are two ways to hand out prompts. A stream (`next_prompts`) gives them to any rank that has
room. Blocks (`next_block`) are a fixed share of each step for each rank, independent of timing. The
module uses neither Ray nor a clock. Left out: the rows (siirl.data_coordinator), and their
transport (siirl.dag_worker.separate).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from siirl.errors import CheckpointError, InvariantError


@dataclass(frozen=True)
class Prompt:
    """A prompt that is handed out."""

    number: int
    """Position in the stream of prompts."""
    step: int
    """Training step that starts it; part of the ids of its samples."""


@dataclass(frozen=True)
class FinishedPrompt:
    """A prompt whose samples wait to be used."""

    prompt: Prompt
    rank: int
    """The rollout rank that has its rows."""
    version: int
    """Training step of the oldest weights that acted in it."""


class RolloutLedger:
    """Accounts of all prompts of a run.

    Args:
        batch: Prompts of a training step (`data.train_batch_size`).
        max_staleness: Versions that a sample may be behind.
        ranks: Rollout ranks.
        streaming: Whether prompts are handed out as a stream; otherwise in blocks.
        version: Completed training steps.
        position: Prompts already taken from the stream.
    """

    def __init__(
        self,
        *,
        batch: int,
        max_staleness: int,
        ranks: int,
        streaming: bool,
        version: int = 0,
        position: int = 0,
    ) -> None:
        self.batch = batch
        self.max_staleness = max_staleness
        self.ranks = ranks
        self.streaming = streaming
        self.version = version
        self.position = position
        self.started = 0
        self.used = version * batch
        self.used_before = self.used
        """Prompts of an earlier run without a ledger; not part of any other count."""
        self.discarded = 0
        self.refills = 0
        """Prompts that steps asked for in addition to their batch."""
        self.running: dict[Prompt, int] = {}
        """Rank by prompt."""
        self.returned: list[Prompt] = []
        """Prompts of dead ranks, to be started again."""
        self.finished: dict[int, FinishedPrompt] = {}
        """Prompts by number, in the order of arrival."""
        self.blocks: dict[int, list[list[int]]] = {}
        """Prompt numbers of each unfinished step: its batch, and its refills."""
        self._surplus = 0
        """Prompts that steps with another batch size used in excess of `batch` each."""

    # Starting

    def room(self, acting: int) -> int:
        """Prompts that a rank may start now whose weights are those of step `acting`."""
        version = min(self.version, acting)
        bound = (self.max_staleness + version + 1) * self.batch + self.refills + self._surplus
        waiting = len(self.running) + len(self.returned) + len(self.finished)
        return max(0, bound - self.used - waiting)

    def next_prompts(self, rank: int, wanted: int, *, acting: int) -> list[Prompt]:
        """Up to `wanted` prompts for `rank` to start now; returned ones come first."""
        again, self.returned = self.returned[:wanted], self.returned[wanted:]
        self.running |= dict.fromkeys(again, rank)
        count = min(self.room(acting), wanted - len(again))
        fresh = []
        for _ in range(max(0, count)):
            fresh.append(Prompt(self.position, step=self._step_of_next()))
            self.position += 1
            self.started += 1
        self.running |= dict.fromkeys(fresh, rank)
        return [*again, *fresh]

    def next_block(self, rank: int) -> list[Prompt] | None:
        """The share of `rank` in the oldest step in which it has prompts to run; None: wait."""
        for step in sorted(self.blocks):
            for numbers in self.blocks[step]:
                own = [Prompt(number, step) for number in numbers[rank :: self.ranks]]
                due = [prompt for prompt in own if prompt in self.returned]
                if due:
                    self.returned = [prompt for prompt in self.returned if prompt not in due]
                    self.running |= dict.fromkeys(due, rank)
                    return due
        step = max(self.blocks, default=self.version) + 1
        if step > self.version + 1 + self.max_staleness:
            return None
        self._open_block(step, self.batch)
        return self.next_block(rank)

    def due_until(self, step: int) -> bool:
        """Whether blocks up to `step` have unfinished prompts or were not opened."""
        pending = [*self.running, *self.returned]
        opened = max(self.blocks, default=self.version)
        return opened < step or any(prompt.step <= step for prompt in pending)

    def refill(self, step: int, count: int) -> None:
        """Start `count` further prompts for the current step."""
        self.refills += count
        if not self.streaming:
            self._open_block(step, count)

    def _open_block(self, step: int, count: int) -> None:
        numbers = list(range(self.position, self.position + count))
        self.blocks.setdefault(step, []).append(numbers)
        self.returned += [Prompt(number, step) for number in numbers]
        self.position += count
        self.started += count

    def _step_of_next(self) -> int:
        """Steps are numbered as if all prompts were used in the order of their start."""
        ahead = self.started - self.discarded - self.refills - self._surplus + self.used_before
        return max(self.version, ahead // self.batch) + 1

    # Finishing

    def finish(self, rank: int, prompt: Prompt, *, version: int) -> bool:
        """Record that the samples of `prompt` are complete; False if another rank has taken the
        prompt over.
        """
        if self.running.get(prompt) != rank:
            return False
        del self.running[prompt]
        self.finished[prompt.number] = FinishedPrompt(prompt, rank, version)
        return True

    def lost(self, rank: int) -> list[int]:
        """Take back all prompts of a rank that died; returns the numbers of finished ones."""
        again = [prompt for prompt, owner in self.running.items() if owner == rank]
        for prompt in again:
            del self.running[prompt]
        numbers = [number for number, entry in self.finished.items() if entry.rank == rank]
        again += [self.finished.pop(number).prompt for number in numbers]
        self.returned = sorted({*self.returned, *again}, key=lambda prompt: prompt.number)
        return numbers

    def take_back(self, prompts: Iterable[Prompt]) -> None:
        """Restart taken prompts whose rows are lost."""
        again = list(prompts)
        self.used -= len(again)
        self.returned = sorted({*self.returned, *again}, key=lambda prompt: prompt.number)

    # Using

    def too_old(self) -> list[int]:
        """Finished prompts that are more than `max_staleness` versions behind; they are dropped."""
        numbers = [
            number
            for number, entry in self.finished.items()
            if self.version - entry.version > self.max_staleness
        ]
        for number in numbers:
            del self.finished[number]
        self.discarded += len(numbers)
        return numbers

    def take(self, count: int, *, step: int) -> list[FinishedPrompt] | None:
        """`count` finished prompts for a step, sorted by number; None until enough are finished.

        In block mode these are the prompts of the step. In stream mode these are the prompts with
        the oldest weights, longest-waiting first.
        """
        if not self.streaming:
            wanted = {number for part in self.blocks.get(step, []) for number in part}
            found = [entry for number, entry in self.finished.items() if number in wanted]
        else:
            found = sorted(self.finished.values(), key=lambda entry: entry.version)
        if len(found) < count:
            return None
        taken = sorted(found[:count], key=lambda entry: entry.prompt.number)
        for entry in taken:
            del self.finished[entry.prompt.number]
        self.used += count
        return taken

    def step_done(self, step: int) -> None:
        """Record that training step `step` is complete."""
        if step not in (self.version, self.version + 1):
            raise InvariantError(f"Step {step} is done after step {self.version}.")
        self.version = step
        self.blocks = {number: block for number, block in self.blocks.items() if number > step}

    # Checkpoints

    def totals(self) -> dict[str, int]:
        """Prompts by outcome; `started` is the sum of the others."""
        return {
            "started": self.started,
            "running": len(self.running) + len(self.returned),
            "finished": len(self.finished),
            "used": self.used - self.used_before,
            "discarded": self.discarded,
        }

    def state_dict(self, unused: Sequence[FinishedPrompt] = ()) -> dict[str, Any]:
        """State as plain data; `unused` holds prompts that a step has taken but not used yet."""
        pending = sorted([*self.running, *self.returned], key=lambda prompt: prompt.number)
        return {
            "streaming": self.streaming,
            "version": self.version,
            "position": self.position,
            "started": self.started,
            "used": self.used - len(unused),
            "used_before": self.used_before,
            "discarded": self.discarded,
            "refills": self.refills,
            "blocks": {step: [list(part) for part in parts] for step, parts in self.blocks.items()},
            "pending": [(prompt.number, prompt.step) for prompt in pending],
            "finished": [
                (entry.prompt.number, entry.prompt.step, entry.version)
                for entry in (*unused, *self.finished.values())
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint: running prompts start again, finished ones wait to be used.

        A run in block mode discards the running prompts of a stream. It reruns the blocks of an
        earlier run if they have another size, or weights that are too old.

        Raises:
            CheckpointError: The counts do not add up.
        """
        self.version, self.position = state["version"], state["position"]
        self.started, self.used = state["started"], state["used"]
        self.used_before, self.discarded = state["used_before"], state["discarded"]
        self.refills = state["refills"]
        self.blocks = {
            int(step): [list(part) for part in parts] for step, parts in state["blocks"].items()
        }
        self.returned = [Prompt(number, step) for number, step in state["pending"]]
        self.finished = {
            number: FinishedPrompt(Prompt(number, step), rank=-1, version=version)
            for number, step, version in state["finished"]
        }
        self.running = {}
        self._surplus = self.used - self.refills - self.version * self.batch
        if self.streaming:
            self.blocks = {}
        elif state["streaming"]:
            self.discarded += len(self.returned) + len(self.finished)
            self.returned, self.finished = [], {}
        elif not self._fits():
            self._forget_blocks()
        totals = self.totals()
        if totals["started"] != sum(totals.values()) - totals["started"]:
            raise CheckpointError(
                f"The checkpoint's rollout counts do not add up: {totals}. Resume from an earlier "
                "checkpoint."
            )

    def _fits(self) -> bool:
        """Whether the unfinished blocks have the size and the weights that this run requires."""
        return all(len(batch) == self.batch for batch, *_ in self.blocks.values()) and all(
            entry.prompt.step - 1 - entry.version <= self.max_staleness
            for entry in self.finished.values()
        )

    def _forget_blocks(self) -> None:
        """Go back to the first prompt that no step has used."""
        sizes = [[len(part) for part in parts] for parts in self.blocks.values()]
        count = sum(map(sum, sizes))
        self.position -= count
        self.started -= count
        self.refills -= sum(sum(refills) for _, *refills in sizes)
        self.blocks = {}
        self.returned = []
        self.finished = {}
