"""A training rank's substitutes for a colocated one's loader, collector, validator and rollout."""

from collections.abc import Mapping, Sequence
from typing import Any

from envs.base import EnvSpec
from siirl.dag_worker.rollout_collector import refuse_segments
from siirl.dag_worker.separate.training_side import TrainingSide
from siirl.data_coordinator.prompts.prompt_loader import PromptLoader
from siirl.data_coordinator.task_stream import Outcomes, TaskLoader
from siirl.interrupts import STOP, Interrupted
from siirl.occupation import OCCUPATION
from siirl.reporting.metric_reduction import combine
from siirl.reporting.metrics import Value


class RemoteLoader:
    """The stream of prompts; the exchange hands out positions in it.

    Args:
        loader: The whole stream, as one rank sees it.
    """

    def __init__(self, loader: TaskLoader | PromptLoader) -> None:
        self.loader = loader

    def draw(self, count: int) -> Sequence[Any]:
        """Count the prompts; the rollout ranks hold them."""
        self.loader.position += count
        return []

    def observe(self, outcomes: Sequence[Outcomes]) -> None:
        """Do nothing: streams that depend on outcomes need colocated rollouts."""

    def metrics(self) -> dict[str, float]:
        """Position in the data."""
        return dict(self.loader.metrics())

    def passes(self) -> float:
        """Number of passes over all prompts."""
        return self.loader.passes()

    def state_dict(self) -> dict[str, Any]:
        """See `Loader`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Loader`."""
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """See `Loader`."""
        self.loader.close()


class RemoteCollector:
    """Sends rewards to the rollout ranks, which record episodes."""

    def __init__(self, *, side: TrainingSide, spec: EnvSpec) -> None:
        self.side = side
        self.reports_success = spec.reports_success
        self._rewards: dict[str, float] = {}

    def write_recordings(self, rewards: Mapping[str, float]) -> None:
        """Keep rewards by uid; a call without rewards, at the end of a step, sends them."""
        if self.side.ranks.rank != 0 or not self.side.draws:
            return
        self._rewards |= rewards
        if rewards:
            return
        self.side.call("send_rewards", self.side.publisher.step, self._rewards)
        self._rewards = {}

    def state_dict(self) -> dict[str, Any]:
        """Empty: rollout ranks play whole episodes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RolloutCollector`."""
        refuse_segments(state)


class RemoteValidator:
    """Has the rollout ranks evaluate the policy of the last step."""

    def __init__(self, *, side: TrainingSide, kinds: Sequence[bool]) -> None:
        self.side = side
        self.kinds = tuple(kinds)

    def evaluate(self, *, step: int, greedy: bool = False, record: bool = True) -> dict[str, Value]:
        """See `Validator`; rank 0 gets the counts of all ranks.

        Raises:
            Interrupted: The run was interrupted; the same on every rank.
        """
        side = self.side
        if side.ranks.rank == 0:
            side.call("evaluate", step, greedy, record)
        with OCCUPATION.doing("waits for the evaluation", waiting=True):
            while True:
                found = side.rollouts.line.call("results") if side.ranks.rank == 0 else None
                stop, there = side.ranks.broadcast_object((STOP.number, found is not None))
                if there:
                    return {} if found is None else combine(found)
                if stop is not None:
                    raise Interrupted(stop)
                side.publisher.serve()


class RemoteRollout:
    """Replaces the rollout on a rank without environments and engine."""

    def __init__(self, side: TrainingSide) -> None:
        self.side = side

    def start(self) -> None:
        """Do nothing."""

    def engine_with_tokenizer(self) -> None:
        """None: the rollout ranks have the engine."""

    def close(self) -> None:
        """Signal the end of the run to the rollout ranks."""
        if self.side.ranks.rank == 0:
            self.side.rollouts.line.call("end")


class NoEpisodeLog:
    """Replaces the episode log on a rank that records nothing."""

    def close(self) -> None:
        """Do nothing."""
