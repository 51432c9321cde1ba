"""A run that is asked to end saves its completed steps at any event; the run that resumes from them
ends like an uninterrupted one.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from one_process import events_of, untimed

from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint
from siirl.dag_worker.events import Activity, Ended, Event, StepDone
from siirl.execution.dag import Node
from siirl.interrupts import STOP
from siirl.models import load_policy

JOB = (
    "pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1", "cluster=local", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.ppo_epochs=1", "trainer.deterministic=true",
    "env.num_servers=1", "env.envs_per_server=4", "trainer.val_episodes=2", "trainer.val_before_train=false", "trainer.test_freq=2",
    "trainer.record_val_episodes=0", "trainer.record_episodes=0", "trainer.max_minutes=null", "trainer.save_freq=100",
    "trainer.total_steps=4", "actor_rollout_ref.model.options={chunk_length: 4, width: 16}",
)  # fmt: skip
EVALUATING = "evaluating on held-out episodes"


@pytest.fixture(autouse=True)
def _asked_by_nobody() -> Iterator[None]:
    yield
    STOP.number = None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict]]:
    """An uninterrupted run: its folder, and its metrics by step."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, metrics_of(list(events_of(folder, JOB)))


def metrics_of(events: list[Event]) -> dict[int, dict]:
    return {event.step: untimed(event.metrics) for event in events if isinstance(event, StepDone)}


def interrupted(folder: Path, when: Callable[[Event], bool]) -> list[Event]:
    """Events of a run that is asked to end at one of them."""
    events = []
    for event in events_of(folder, JOB):
        events.append(event)
        if when(event):
            STOP.request(signal.SIGTERM)
    STOP.number = None
    return events


def begins(text: str, *, time: int = 1) -> Callable[[Event], bool]:
    """Whether the activity `text` begins for the time-th time."""
    seen: list[Event] = []

    def begins(event: Event) -> bool:
        seen.extend([event] if event == Activity(text) else [])
        return event == Activity(text) and len(seen) == time

    return begins


def check_goes_on(
    folder: Path, whole: tuple[Path, dict[int, dict]], *, done: dict[int, dict]
) -> None:
    """Both parts together have the metrics of the whole run, and end with its weights."""
    rest = metrics_of(list(events_of(folder, [*JOB, f"trainer.resume={folder}"])))
    assert {
        step: done.get(step, {}) | rest.get(step, {}) for step in done.keys() | rest.keys()
    } == whole[1]
    one, other = (
        load_policy(place / "checkpoints" / "step_00000004" / "actor").state_dict()
        for place in (whole[0], folder)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_step_is_abandoned_before_its_weights_change(whole, tmp_path) -> None:
    events = interrupted(tmp_path, begins("step 3"))
    assert events[-1] == Ended(2)
    assert read_manifest(resolve_checkpoint(tmp_path))["step"] == 2
    done = metrics_of(events)
    assert done.keys() == {1, 2}
    check_goes_on(tmp_path, whole, done=done)


def test_a_step_is_completed_once_its_weights_changed(whole, tmp_path, monkeypatch) -> None:
    """The request comes in the node that trains the actor in step 1."""
    run_node = Node.run

    def run(self, **available):
        if self.node_id == "actor_train":
            STOP.request(signal.SIGTERM)
        return run_node(self, **available)

    monkeypatch.setattr(Node, "run", run)
    events = list(events_of(tmp_path, JOB))
    monkeypatch.undo()
    STOP.number = None
    assert events[-1] == Ended(1)
    done = metrics_of(events)
    assert done == {1: whole[1][1]}
    check_goes_on(tmp_path, whole, done=done)


def test_a_step_is_abandoned_after_a_forward_pass_of_the_model_that_it_trains(
    whole, tmp_path, monkeypatch
) -> None:
    """The request comes in the second step, in the node that recomputes log-probs."""
    run_node = Node.run
    ran: list[str] = []

    def run(self, **available):
        ran.append(self.node_id)
        if ran.count("actor_old_log_prob") == 2 and self.node_id == "actor_old_log_prob":
            STOP.request(signal.SIGTERM)
        return run_node(self, **available)

    monkeypatch.setattr(Node, "run", run)
    events = list(events_of(tmp_path, JOB))
    monkeypatch.undo()
    STOP.number = None
    assert (events[-1], ran[-1]) == (Ended(1), "actor_old_log_prob")
    done = metrics_of(events)
    assert done.keys() == {1}
    check_goes_on(tmp_path, whole, done=done)


@pytest.mark.parametrize(("evaluation", "step"), [(1, 2), (2, 4)])
def test_an_interrupted_evaluation_is_repeated_by_the_next_run(
    whole, tmp_path, evaluation: int, step: int
) -> None:
    events = interrupted(tmp_path, begins(EVALUATING, time=evaluation))
    assert events[-1] == Ended(step)
    manifest = read_manifest(resolve_checkpoint(tmp_path))
    assert (manifest["step"], manifest["evaluation_due"]) == (step, True)
    done = metrics_of(events)
    assert not any(name.startswith("val/") for name in done[step])
    check_goes_on(tmp_path, whole, done=done)
    assert "evaluation_due" not in read_manifest(resolve_checkpoint(tmp_path))


def test_before_the_first_step_there_is_nothing_to_save(tmp_path) -> None:
    assert interrupted(tmp_path, begins("step 1"))[-1] == Ended(0)
    assert not (tmp_path / "checkpoints" / "latest").exists()
