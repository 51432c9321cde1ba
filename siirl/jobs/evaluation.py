"""Evaluation of a policy on held-out episodes or by a published protocol, up to its tables.

Implements `siirl evaluate` after argument parsing. The Validator runs the episodes of
held-out seeds.
"""

import contextlib
import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.table import Table
from rich.text import Text

from siirl import interrupts, stacks
from siirl.dag_worker.assembly import Evaluation, build_evaluation
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.rank_device import prepare_device
from siirl.errors import ConfigError
from siirl.execution.scheduler.watchdog import OwnWatch
from siirl.files.weight_files import weight_files
from siirl.jobs.cluster_session import session
from siirl.jobs.libero_protocol import (
    EPISODES_FILE,
    STATES,
    asked_for,
    chosen_tasks,
    conditions,
    identity,
    played_sentence,
    protocol_tables,
    rates,
    read_episodes,
    run_protocol,
    suite_words,
)
from siirl.jobs.policy_place import configuration
from siirl.jobs.training_run import recording_lines
from siirl.occupation import OCCUPATION
from siirl.params import SiiRLArguments, sizes
from siirl.params.domains import is_text
from siirl.params.reward_args import reward_parts
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import TrainingArguments
from siirl.preflight.check_embodied import check_policy
from siirl.preflight.check_text import check_player
from siirl.preflight.early_checks import check_before_evaluation
from siirl.preflight.machine import check_machine
from siirl.preflight.ungraded_rows import rate_by_grade
from siirl.reporting.command_console import CommandConsole
from siirl.reporting.console import (
    cell,
    interval_table,
    narrow_table,
    perturbation_table,
)
from siirl.reporting.metric_reduction import reduce_metrics
from siirl.reporting.metrics import Reduced
from siirl.reporting.progress import Progress
from siirl.reporting.run_folder import run_folder
from siirl.reporting.statistics import (
    MeanInterval,
    SuccessInterval,
    all_last,
    evaluations,
    mean_scores,
)
from siirl.terminal.printable import printable

RESULT_FILE = "evaluation.json"
# Settings of a run's configuration that an evaluation ignores: demonstrations and further ranks.
NOTHING_IS_TRAINED = ("reward.demonstrations=null", "trainer.nnodes=1", "trainer.n_gpus_per_node=1")
LARGE_RETURN = 10  # from here on one decimal suffices; a score between 0 and 1 needs more
Success = dict[str, SuccessInterval]
Returns = dict[str, float]
Scores = dict[str, MeanInterval]
Measured = TypeVar("Measured")


def evaluate(
    checkpoint: Path, overrides: Sequence[str], *, kinds: Sequence[bool], resume: Path | None = None
) -> None:
    """Evaluate, write the results, and print them.

    Args:
        checkpoint: Policy folder, checkpoint or run folder.
        overrides: Configuration words of the command line.
        kinds: One evaluation per entry: greedy for True, sampled for False.
        resume: Folder of an interrupted evaluation by the published protocol.
    """
    config = configuration(
        checkpoint,
        overrides,
        given=("trainer.experiment_name=evaluation", *NOTHING_IS_TRAINED, *suite_words(overrides)),
        pipeline="grpo",  # accepts every environment
    )
    policy_folder = Path(config.actor_rollout_ref.model.path or "")
    rate_by_grade(config)
    if config.trainer.val_episodes == 0:
        raise ConfigError(
            "trainer.val_episodes=0: an evaluation needs at least one episode per task; the "
            "default is 20."
        )
    spec = check_before_evaluation(config)
    published = asked_for(config.env)
    # one task at a time: simulators of 40 tasks in each of four environments would need over 20 GB
    if published:
        config.env.kwargs = {"kept_simulators": 1} | config.env.kwargs
    check_machine(config, spec)
    if is_text(spec):
        check_player(config)
    else:
        check_policy(config, spec)
    if resume is not None and not published:
        raise ConfigError(
            f"resume={resume} resumes an evaluation by a published protocol only: env=libero "
            "env.states=all."
        )
    with (
        run_folder(config, needed_bytes=10_000_000, describe=lambda folder: "") as folder,
        interrupts.grace_period(config.trainer.grace_s),
    ):
        description = {
            "checkpoint": str(checkpoint),
            "policy_folder": str(policy_folder),
            "notice": spec.notice,
            **sampling_of(config.actor_rollout_ref.rollout, config.trainer),
        }
        if published:
            weights = weight_files(policy_folder)
            results, tables = by_protocol(
                config, folder, kinds=kinds, weights=weights, notice=spec.notice, resume=resume
            )
        else:
            results, tables = on_held_out(config, folder, kinds=kinds)
        (folder / RESULT_FILE).write_text(json.dumps(description | results, indent=1) + "\n")
        _print_results(folder, tables, notice=spec.notice)


def _print_results(folder: Path, tables: Sequence[Table], *, notice: str) -> None:
    console = CommandConsole()
    console.print(*tables, sep="\n")
    if notice:
        console.print(Text(printable(notice), style="bold"))
    lines = (f"results     {folder / RESULT_FILE}", *recording_lines(folder))
    console.print(*lines, sep="\n", soft_wrap=True)


def sampling_of(rollout: RolloutArguments, trainer: TrainingArguments) -> dict[str, Any]:
    """Settings that select the episodes and the random numbers of sampled actions."""
    return {
        "first_seed": trainer.val_seed_offset,
        "episodes_per_task": trainer.val_episodes,
        "temperature": rollout.temperature,
    }


def on_held_out(
    config: SiiRLArguments, folder: Path, *, kinds: Sequence[bool]
) -> tuple[dict[str, Any], list[Table]]:
    """Success, mean returns and rewards on held-out episodes, as plain data and as tables."""
    success, returns, scores = run(config, folder, kinds=kinds)
    trainer = config.trainer
    seeds = (
        f"seeds {trainer.val_seed_offset} to {trainer.val_seed_offset + trainer.val_episodes - 1}"
    )
    results: dict[str, Any] = {"success": plain(success), "return": returns}
    tables = []
    title = f"success on held-out episodes, {seeds}, 95 % intervals"
    if config.env.perturb is not None:
        tables += perturbation_tables(title, success)
    elif any(success.values()):
        tables.append(interval_table(title, success))
    if any(scores.values()):
        results["reward"] = plain(scores)
        parts = " + ".join(
            part.label for part in reward_parts(config.reward, config.custom_reward_function)
        )
        tables.append(
            interval_table(
                f"mean reward ({parts}) of held-out episodes without a grade, 95 % intervals",
                scores,
            )
        )
    if not tables or adds_to(success, returns):
        title = f"mean return of {trainer.val_episodes} held-out episodes of each task, {seeds}"
        tables += [
            return_table(f"{kind}: {title}" if kind else title, columns)
            for kind, columns in columns_of_returns(config.env.perturb, returns).items()
        ]
    return results, tables


def adds_to(success: Mapping[str, Success], returns: Mapping[str, Returns]) -> bool:
    """Whether mean returns say more than success rates; they do not if the reward is success."""
    for kind, found in returns.items():
        known = success.get(kind, {})
        for task, value in found.items():
            if task not in known or not math.isclose(value, known[task].rate, abs_tol=1e-6):
                return True
    return False


def columns_of_returns(
    perturb: Sequence[str] | None, returns: Mapping[str, Returns]
) -> dict[str, Mapping[str, Returns]]:
    """Columns of each table: kinds of action; with perturbations these, for each kind."""
    return {"": returns} if perturb is None else dict(by_case(returns))


def perturbation_cases(perturb: Sequence[str] | None) -> dict[str, Sequence[str] | None]:
    """Evaluations by name: standard episodes, each perturbation alone, all together."""
    if perturb is None:
        return {"": None}
    cases: dict[str, Sequence[str] | None] = {"standard": ()}
    cases |= {factor: (factor,) for factor in perturb}
    return cases | ({"together": perturb} if len(perturb) > 1 else {})


def perturbation_tables(title: str, success: Mapping[str, Success]) -> list[Table]:
    """One table per kind of action: a column per perturbation, beside the standard episodes."""
    return [
        perturbation_table(f"{kind}: {title}", columns)
        for kind, columns in by_case(success).items()
    ]


def by_case(measured: Mapping[str, Measured]) -> dict[str, dict[str, Measured]]:
    """`kind/case` as a kind of action with its cases."""
    by_kind: dict[str, dict[str, Measured]] = {}
    for name, found in measured.items():
        kind, _, case = name.partition("/")
        by_kind.setdefault(kind, {})[case] = found
    return by_kind


def plain(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Intervals as plain data."""
    return {
        kind: {task: vars(interval) for task, interval in found.items()}
        for kind, found in measured.items()
    }


def return_table(title: str, columns: Mapping[str, Returns]) -> Table:
    """Table of mean returns: a row per task, a column per kind of action."""
    table = narrow_table(title)
    for name in columns:
        table.add_column(name)
    for task in sorted(
        dict.fromkeys(task for returns in columns.values() for task in returns), key=all_last
    ):
        table.add_row(
            cell(task),
            *(_number(returns[task]) if task in returns else "-" for returns in columns.values()),
        )
    return table


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= LARGE_RETURN else f"{value:.3f}"


def by_protocol(
    config: SiiRLArguments,
    folder: Path,
    *,
    kinds: Sequence[bool],
    weights: Sequence[Path],
    notice: str,
    resume: Path | None,
) -> tuple[dict[str, Any], list[Table]]:
    """Success by LIBERO's published protocol, as plain data and as the tables of papers."""
    tasks = chosen_tasks(config.env)
    names = ["argmax" if greedy else "sampled" for greedy in kinds]
    description = identity(
        config.env, config.actor_rollout_ref.rollout, config.trainer, weights, notice=notice
    )
    # raises before anything starts
    done = [] if resume is None else read_episodes(resume / EPISODES_FILE, expected=description)
    total = len(tasks) * STATES * len(names)
    before = sum(episode.kind in names for episode in done)
    with (
        started(config, folder) as evaluation,
        Progress("published protocol", total, done=before) as progress,
    ):
        episodes = run_protocol(
            rollout=evaluation.rollout,
            tasks=tasks,
            kinds=names,
            seed=config.trainer.val_seed_offset,
            file=folder / EPISODES_FILE,
            description=description,
            done=done,
            max_failed_share=config.env.max_failed_share,
            on_done=functools.partial(_advance, progress),
        )
    limit = config.env.max_episode_steps
    below = conditions(config.env, notice=notice)
    tables: list[Table] = []
    for kind in names:
        tables += protocol_tables(
            episodes, tasks, kind=kind, conditions=below, max_episode_steps=limit
        )
    played = {kind: played_sentence(episodes, kind=kind, max_episode_steps=limit) for kind in names}
    return {
        "success": {kind: plain(rates(episodes, kind=kind)) for kind in names},
        "played": played,
        "episodes_per_task": STATES,
        "conditions": below,
    }, tables


@contextlib.contextmanager
def started(config: SiiRLArguments, folder: Path) -> Iterator[Evaluation]:
    """Start an evaluation and close it with the context, or if `trainer.hang_minutes` pass."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        traces = stack.enter_context(stacks.folder_of(folder))
        stack.enter_context(session(config.cluster, folder=folder))
        stack.enter_context(
            OwnWatch(
                limit_s=sizes.hang_limit_s(config.trainer),
                folder=traces,
                environment=config.env.title,
            )
        )
        with OCCUPATION.doing("starts simulators and loads the policy"):
            device = prepare_device(deterministic=config.trainer.deterministic)
            evaluation = build_evaluation(
                config=config, run_folder=folder, ranks=OneProcess(), device=device
            )
            stack.callback(evaluation.close)
            evaluation.rollout.start()
        with OCCUPATION.doing("evaluates"):
            yield evaluation


def run(
    config: SiiRLArguments, folder: Path, *, kinds: Sequence[bool]
) -> tuple[dict[str, Success], dict[str, Returns], dict[str, Scores]]:
    """Start environments, evaluate, close; success, return and reward per task and kind."""
    success: dict[str, Success] = {}
    returns: dict[str, Returns] = {}
    scores: dict[str, Scores] = {}
    with started(config, folder) as evaluation:
        tasks = evaluation.rollout.pool.spec.tasks
        cases = perturbation_cases(config.env.perturb)
        for greedy, (case, perturb) in itertools.product(kinds, cases.items()):
            kind = ("argmax" if greedy else "sampled") + (f"/{case}" if case else "")
            samples = 1 if greedy else config.trainer.val_samples
            with Progress(
                f"{kind} actions", config.trainer.val_episodes * len(tasks) * samples
            ) as progress:
                # one kind suffices: the actions of training
                shown = not greedy or len(kinds) == 1
                advance = functools.partial(_advance, progress)
                metrics = evaluation.validator.evaluate(
                    step=0, greedy=greedy, record=shown, perturb=perturb, on_done=advance
                )
            reduced = reduce_metrics([metrics])
            success[kind] = evaluations(reduced, kind="argmax_" if greedy else "")
            returns[kind] = mean_returns(reduced, kind="argmax_" if greedy else "")
            scores[kind] = mean_scores(reduced, kind="argmax_" if greedy else "")
            if samples > 1:
                success[f"any of {samples}" + (f"/{case}" if case else "")] = evaluations(
                    reduced, kind="any_"
                )
    return success, returns, scores


def mean_returns(metrics: Mapping[str, Reduced], *, kind: str) -> Returns:
    """`val/<task>/<kind>return` by task."""
    suffix = f"/{kind}return"
    return {
        name[len("val/") : -len(suffix)]: value
        for name, value in metrics.items()
        if name.startswith("val/") and name.endswith(suffix) and isinstance(value, float)
    }


def _advance(progress: Progress, request: EpisodeRequest) -> None:
    progress.advance()
