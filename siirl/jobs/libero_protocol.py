"""LIBERO's published protocol: 50 initial states per task, published step limits, paper tables.

Papers report the share of successes over 10 tasks x 50 initial states per suite, and the mean over
suites (OpenVLA-OFT, https://arxiv.org/abs/2502.19645, table 1; LIBERO,
https://arxiv.org/abs/2306.03310). This module adds counts and 95 % intervals. `env.states=all`
selects the protocol: training may have started from the same states, and the table says so. The
table also says that fixtures in episode i stand as in the official evaluation's episode i
(`envs.libero.placements`), and how images differ from the official ones.

Each finished episode is appended as a line to `episodes.jsonl` in the run folder. An interrupted
evaluation resumes from that file if policy, environment and kind of action are unchanged. Episodes
that failed to simulate have no line and are retried.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from envs.libero.initial_states import PLACEMENTS, STATES
from envs.libero.suites import LiberoTask, choose_tasks, suite_tasks
from siirl.engine.rollout.rollout import Rollout, check_failures
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow, Trajectory
from siirl.engine.training.collectives import OneProcess
from siirl.errors import CheckpointError
from siirl.params import EnvArguments
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import TrainingArguments
from siirl.reporting.console import narrow_table
from siirl.reporting.jsonl import JsonlFile, read_rows
from siirl.reporting.statistics import SuccessInterval, success_interval

EPISODES_FILE = "episodes.jsonl"
PHYSICS = (
    "mujoco",
    "robosuite",
    "hf-libero",
)  # packages whose version changes the score of a policy
# Pixels in openvla-oft's run_libero_eval.py; robosuite's renderer draws everything.
OFFICIAL_IMAGES = (256, "full")
SUITE_TITLES = {"spatial": "Spatial", "object": "Object", "goal": "Goal", "10": "Long", "90": "90"}


@dataclass(frozen=True)
class PublishedEpisode:
    """One finished episode of the protocol."""

    suite: str
    number: int
    """Number of the task in its suite."""
    state: int
    """Initial state, from 0."""
    kind: str
    """`sampled` or `argmax`."""
    success: bool
    steps: int

    @property
    def key(self) -> tuple[str, int, int, str]:
        """Identity of the episode within an evaluation."""
        return self.suite, self.number, self.state, self.kind


def suite_words(overrides: Sequence[str]) -> list[str]:
    """Default words of `env=libero env.suite=…` for the whole protocol; the user's words win."""
    named = {word.partition("=")[0] for word in overrides}
    return (
        ["env.tasks=null", "env.states=all"]
        if "env=libero" in overrides and "env.suite" in named
        else []
    )


def asked_for(env: EnvArguments) -> bool:
    """Whether a configuration asks for the published protocol, which has no perturbations."""
    return env.name == "libero" and env.states == "all" and env.perturb is None


def identity(
    env: EnvArguments,
    rollout: RolloutArguments,
    trainer: TrainingArguments,
    weights: Sequence[Path],
    *,
    notice: str,
) -> dict[str, Any]:
    """Properties that an interrupted evaluation and its continuation must share.

    Args:
        env, rollout, trainer: Groups of the evaluation's configuration.
        weights: Files of the policy's weights, identified by digest and not by path.
        notice: `EnvSpec.notice`, which says whether assets are stand-ins.
    """
    digest = hashlib.sha256()
    for part in weights:
        with part.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return {
        "weights": digest.hexdigest()[:16],
        "image_size": env.image_size,
        "camera": env.camera,
        "render_quality": env.render_quality,
        "max_episode_steps": env.max_episode_steps,
        "temperature": rollout.temperature,
        "first_seed": trainer.val_seed_offset,
        "notice": notice,
        "placements": PLACEMENTS,
        **{package: version(package) for package in PHYSICS},
    }


def conditions(env: EnvArguments, *, notice: str) -> str:
    """Notes below each table: placements, differences of images, and `notice`."""
    drawn = (env.image_size, env.render_quality)
    sentence = "images of {} pixels, {}; the official ones have {}, {}"
    images = "" if drawn == OFFICIAL_IMAGES else sentence.format(*drawn, *OFFICIAL_IMAGES)
    return "; ".join(filter(None, (PLACEMENTS, images, notice)))


def read_episodes(file: Path, *, expected: Mapping[str, Any]) -> list[PublishedEpisode]:
    """Read the episodes of an interrupted evaluation.

    Raises:
        CheckpointError: The file holds no episodes, or those of another policy, environment or
            version.
    """
    rows = list(read_rows(file))
    if not rows:
        raise CheckpointError(f"{file} has no episodes to resume from.")
    found = _without_step(rows[0])
    for name in expected.keys() | found.keys():
        if found.get(name) != expected.get(name):
            raise CheckpointError(
                f"{file} was evaluated with {name}={found.get(name)!r}, but this evaluation has "
                f"{expected.get(name)!r}: resume with the same value, or start a new evaluation."
            )
    return [PublishedEpisode(**_without_step(row)) for row in rows[1:]]


def _without_step(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "step"}


def run_protocol(
    *,
    rollout: Rollout,
    tasks: Sequence[LiberoTask],
    kinds: Sequence[str],
    seed: int,
    file: Path,
    description: Mapping[str, Any],
    done: Sequence[PublishedEpisode] = (),
    states: int = STATES,
    max_failed_share: float = EnvArguments.max_failed_share,
    on_done: Callable[[EpisodeRequest], None] = lambda request: None,
) -> list[PublishedEpisode]:
    """Play the missing episodes, task by task, and return all.

    Args:
        rollout: A started rollout whose environment has `env.states=all`.
        tasks: Tasks to play, in the order of the environment's tasks.
        kinds: `sampled`, `argmax` or both.
        seed: Seed of the sampled actions; papers evaluate with several.
        file: Each finished episode is appended here; the episodes in `done` are written first.
        description: `identity`, the file's first line.
        done: Episodes that are already played.
        states: Initial states per task, from the first.
        max_failed_share: Share of a task's episodes that may fail to simulate before the evaluation
            stops.
        on_done: Called after each episode.
    """
    finished = {episode.key for episode in done}
    episodes: list[PublishedEpisode] = []
    rows = JsonlFile(file)

    def keep(episode: PublishedEpisode) -> None:
        rows.append({"step": 0, **asdict(episode)})
        episodes.append(episode)

    try:
        rows.append({"step": 0, **description})
        for episode in done:
            keep(episode)
        for kind in kinds:
            for task_id, task in enumerate(tasks):
                missing = [
                    state
                    for state in range(states)
                    if (task.suite, task.number, state, kind) not in finished
                ]
                requests = [
                    _request(task, task_id, state, kind=kind, seed=seed) for state in missing
                ]
                kept = _RecordingWorkflow(rollout.workflow, task=task, kind=kind, keep=keep)
                result = rollout.rollout_batch(requests, kept, on_done=on_done)
                check_failures(
                    result,
                    episodes=len(requests),
                    max_failed_share=max_failed_share,
                    ranks=OneProcess(),
                )
    finally:
        rows.close()
    return episodes


class _RecordingWorkflow(RolloutWorkflow):
    """Drops trajectories after recording: 50 episodes of a 7B policy have 1 GB of images."""

    def __init__(
        self,
        workflow: RolloutWorkflow,
        *,
        task: LiberoTask,
        kind: str,
        keep: Callable[[PublishedEpisode], None],
    ) -> None:
        self._workflow = workflow
        self._task = task
        self._kind = kind
        self._keep = keep

    async def arun_episode(self, engine: Any, data: EpisodeRequest) -> None:
        """See `RolloutWorkflow.arun_episode`; returns no trajectory."""
        trajectory = await self._workflow.arun_episode(engine, data)
        assert isinstance(trajectory, Trajectory), "an embodied episode is one trajectory"
        self._keep(_episode(self._task, trajectory.row, kind=self._kind))


def chosen_tasks(env: EnvArguments) -> tuple[LiberoTask, ...]:
    """Tasks of a configuration, in the environment's order."""
    return choose_tasks(env.suite or "object", env.tasks)


def rates(
    episodes: Iterable[PublishedEpisode], *, kind: str
) -> dict[str, dict[str, SuccessInterval]]:
    """Success by suite and task number; `all` is the whole suite."""
    counts: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for episode in episodes:
        if episode.kind == kind:
            for row in (str(episode.number), "all"):
                counts[episode.suite][row].append(episode.success)
    found: dict[str, dict[str, SuccessInterval]] = {}
    for suite, rows in counts.items():
        found[suite] = {row: success_interval(sum(each), len(each)) for row, each in rows.items()}
    return found


def suite_mean(of_suites: Mapping[str, Mapping[str, SuccessInterval]]) -> float:
    """Mean of the suites' rates: the last column of the papers' tables."""
    return sum(rows["all"].rate for rows in of_suites.values()) / len(of_suites)


def protocol_tables(
    episodes: Sequence[PublishedEpisode],
    tasks: Sequence[LiberoTask],
    *,
    kind: str,
    conditions: str,
    max_episode_steps: int | None = None,
) -> list[Table]:
    """A table with a row per task, and one with a column per suite.

    Args:
        episodes: The episodes played.
        tasks: All tasks of the table.
        kind: `sampled` or `argmax`.
        conditions: Caption of both tables.
        max_episode_steps: Replaces the published limits.
    """
    of_suites = rates(episodes, kind=kind)
    sentence = played_sentence(episodes, kind=kind, max_episode_steps=max_episode_steps)
    played = f"{kind} actions, {sentence}"
    title = (
        f"LIBERO by task, {played}; training may have started from the same states (env.states=all)"
    )
    by_task = narrow_table(title)
    by_task.add_column("instruction")
    by_task.add_column("success", no_wrap=True)
    for task in tasks:
        interval = of_suites.get(task.suite, {}).get(str(task.number))
        by_task.add_row(
            f"{task.suite}/{task.number}",
            task.instruction,
            "-" if interval is None else str(interval),
        )
    named = {suite: rows["all"] for suite, rows in of_suites.items()}
    by_suite = narrow_table(f"LIBERO by suite, {played}", first="suite")
    by_suite.add_column("success", no_wrap=True)
    for suite, interval in named.items():
        by_suite.add_row(SUITE_TITLES[suite], str(interval))
    if named:
        by_suite.add_row("average", f"{100 * suite_mean(of_suites):.1f} %")
    for table in (by_task, by_suite):
        table.caption = conditions
    return [by_task, by_suite]


def played_sentence(
    episodes: Iterable[PublishedEpisode], *, kind: str, max_episode_steps: int | None
) -> str:
    """States, tasks and step limits of the evaluation, and whether they equal those of the
    papers.
    """
    by_task: dict[tuple[str, int], set[int]] = defaultdict(set)
    for episode in episodes:
        if episode.kind == kind:
            by_task[episode.suite, episode.number].add(episode.state)
    counts = sorted({len(states) for states in by_task.values()})
    fewest, most = (counts[0], counts[-1]) if counts else (0, 0)
    spread = f"{fewest} to {most}" if fewest < most else str(fewest)
    less = [] if counts == [STATES] else [f"{spread} of {STATES} initial states of each task"]
    for suite, number in Counter(suite for suite, _ in by_task).items():
        whole = len(suite_tasks(suite))
        less += [] if number == whole else [f"{number} of {whole} tasks of {suite}"]
    less += (
        []
        if max_episode_steps is None
        else [f"at most {max_episode_steps} steps instead of the suites' limits"]
    )
    if not less:
        return f"all {STATES} initial states of each task (the published protocol)"
    return f"{', '.join(less)} (NOT the whole published protocol)"


def _request(task: LiberoTask, task_id: int, state: int, *, kind: str, seed: int) -> EpisodeRequest:
    number = task_id * STATES + state
    return EpisodeRequest(
        uid=f"published-{kind}-{task.suite}-{task.number:02d}-{state:02d}",
        group_id=number,
        task=task.name,
        task_id=task_id,
        trial_id=state,
        seed=state,  # with env.states=all, seed k starts from state k
        policy_seed=(seed, number),
        greedy=kind == "argmax",
    )


def _episode(task: LiberoTask, row: Mapping[str, Any], *, kind: str) -> PublishedEpisode:
    return PublishedEpisode(
        suite=task.suite,
        number=task.number,
        state=int(row["seed"]),
        kind=kind,
        success=bool(row["complete"]),
        steps=int(row["finish_step"]),
    )
