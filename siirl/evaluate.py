"""`python -m siirl.evaluate checkpoint=…`: success of a policy on held-out episodes, per task, with counts and 95 % intervals.

    python -m siirl.evaluate checkpoint=outputs/run/2026-11-21_12-00-00            # newest checkpoint of a run, its own environment
    python -m siirl.evaluate checkpoint=assets/tiny_vla env=mujoco trainer.val_episodes=100

`checkpoint` is a policy folder, a checkpoint, or a run folder; a run's own configuration is the default then. Everything else is
as for `siirl.train`. `actions=sampled|argmax|both` chooses how the policy acts. Results go to `evaluation.json` in a run folder of
their own, with videos of `trainer.record_val_episodes` episodes.
"""

import functools
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from siirl.dag_worker.build import make_policy, make_pool, make_rollout
from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint
from siirl.dag_worker.console import success_table
from siirl.dag_worker.launch import session
from siirl.dag_worker.metrics import reduce_metrics
from siirl.dag_worker.progress import Progress
from siirl.dag_worker.record import EpisodeRecorder
from siirl.dag_worker.recorder import VIDEOS_FOLDER, VideoRecorder
from siirl.dag_worker.statistics import SuccessInterval, evaluations
from siirl.dag_worker.validator import Validator
from siirl.engine.collectives import OneProcess
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.errors import CheckpointError, ConfigError, MissingAssetError, SiirlError, UnknownNameError
from siirl.params import SiiRLArguments
from siirl.params.ending import end_on_signals
from siirl.params.first_look import first_look
from siirl.params.machine import machine_problems
from siirl.params.parser import parse_config
from siirl.params.problems import refuse
from siirl.params.run_folder import CONFIG_FILE, run_folder

RESULT_FILE = "evaluation.json"
ACTIONS = {"sampled": (False,), "argmax": (True,), "both": (False, True)}
Success = dict[str, SuccessInterval]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0 done, 1 failed, 2 refused, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"--help", "-h"} & set(words):
        print(__doc__)
        return 0
    try:
        checkpoint, words = _take(words, "checkpoint", default=None)
        actions, words = _take(words, "actions", default="both")
        if checkpoint is None:
            raise ConfigError("Which policy? Give checkpoint=FOLDER: a policy folder, a checkpoint, or a run folder.")
        if actions not in ACTIONS:
            raise UnknownNameError.of(kind="value of actions=", name=str(actions), known=ACTIONS)
        evaluate(Path(checkpoint), words, kinds=ACTIONS[str(actions)])
    except (ConfigError, MissingAssetError, CheckpointError) as error:
        print(f"siirl: {error}", file=sys.stderr)
        return 2
    except SiirlError as error:
        print(f"siirl: the evaluation failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("siirl: interrupted", file=sys.stderr)
        return 130
    return 0


def evaluate(checkpoint: Path, overrides: Sequence[str], *, kinds: Sequence[bool]) -> dict[str, Success]:
    """Evaluate and write the results; success by task for each way of acting.

    Args:
        checkpoint: Policy folder, checkpoint or run folder.
        overrides: Configuration, as on the command line.
        kinds: Whether actions are the most likely ones; one evaluation each.
    """
    policy_folder, config_file = locate(checkpoint)
    config = parse_config(
        [f"actor_rollout_ref.model.path={policy_folder}", "trainer.experiment_name=evaluation", "reward.name=success", *overrides],
        config_file=config_file,
    )
    first_look(config)
    refuse(machine_problems(config))
    with run_folder(config, needed_bytes=10_000_000) as folder:
        results = run(config, folder, kinds=kinds)
        trainer = config.trainer
        description = {
            "checkpoint": str(checkpoint),
            "policy_folder": str(policy_folder),
            "first_seed": trainer.val_seed_offset,
            "episodes_per_task": trainer.val_episodes,
            "temperature": config.actor_rollout_ref.rollout.temperature,
            "success": {kind: {task: vars(interval) for task, interval in success.items()} for kind, success in results.items()},
        }
        (folder / RESULT_FILE).write_text(json.dumps(description, indent=1) + "\n")
        seeds = f"seeds {trainer.val_seed_offset} to {trainer.val_seed_offset + trainer.val_episodes - 1}"
        console = Console()
        console.print(success_table(f"success on held-out episodes, {seeds}, 95 % intervals", results))
        console.print(f"results     {folder / RESULT_FILE}\nvideos      {folder / VIDEOS_FOLDER}", soft_wrap=True)
    return results


def locate(checkpoint: Path) -> tuple[Path, Path | None]:
    """The policy folder that `checkpoint` means, and the configuration of its run, where it is part of one.

    Raises:
        CheckpointError: Neither a policy folder nor a checkpoint nor a run folder, or a damaged one.
    """
    if (checkpoint / "config.json").is_file():
        return checkpoint, None
    folder = resolve_checkpoint(checkpoint)
    read_manifest(folder)
    config_file = folder.parent.parent / CONFIG_FILE
    return folder / "actor", config_file if config_file.is_file() else None


def run(config: SiiRLArguments, folder: Path, *, kinds: Sequence[bool]) -> dict[str, Success]:
    """Start simulators, evaluate, end them."""
    torch.set_num_threads(1)
    ranks, results = OneProcess(), {}
    with ExitStack() as stack:
        stack.enter_context(session(config))
        pool = make_pool(config, ranks)
        rollout = make_rollout(config, pool=pool, acting=make_policy(config, pool.spec).eval(), encoder=None)
        stack.callback(rollout.close)
        rollout.start()
        videos = stack.enter_context(VideoRecorder(folder / VIDEOS_FOLDER))
        validator = Validator(
            rollout=rollout,
            ranks=ranks,
            recorder=EpisodeRecorder(videos=videos, reports_success=pool.spec.reports_success),
            tasks=pool.spec.tasks,
            episodes=config.trainer.val_episodes,
            first_seed=config.trainer.val_seed_offset,
            record=config.trainer.record_val_episodes,
        )
        for greedy in kinds:
            kind = "argmax" if greedy else "sampled"
            with Progress(f"{kind} actions", config.trainer.val_episodes * len(pool.spec.tasks)) as progress:
                metrics = validator.evaluate(step=0, greedy=greedy, on_done=functools.partial(_advance, progress))
            results[kind] = evaluations(reduce_metrics([metrics]), kind="argmax_" if greedy else "")
    return results


def _advance(progress: Progress, request: EpisodeRequest) -> None:
    progress.advance()


def _take(words: list[str], key: str, *, default: Any) -> tuple[str | None, list[str]]:
    """The value of the last `key=…` among `words`, and the other words."""
    found = [word for word in words if word.startswith(f"{key}=")]
    return (found[-1].partition("=")[2] if found else default), [word for word in words if word not in found]


def command() -> None:
    """The command as a process of its own, which signals may end."""
    end_on_signals()
    sys.exit(main())


if __name__ == "__main__":
    command()
