"""Checks of the run that `trainer.resume` continues."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from envs.base import EnvSpec
from siirl.dag_worker.agent_groups import AGENTS, trained_engines
from siirl.dag_worker.components import make_task_loader
from siirl.dag_worker.manifest import (
    EVALUATION_DUE,
    STATE_FILE,
    read_manifest,
    require_engines,
    resolve_checkpoint,
)
from siirl.dag_worker.plain_state import read_state
from siirl.engine.training.collectives import OneProcess
from siirl.errors import ConfigError
from siirl.execution.dag import TaskGraph
from siirl.params import SiiRLArguments
from siirl.params.build import as_text
from siirl.params.key_names import MODEL_OPTIONS, MODEL_POLICY
from siirl.params.parser import to_yaml
from siirl.params.reward_args import VIDEO_REWARDS
from siirl.params.schema import keys_of
from siirl.params.user_settings import value_at
from siirl.preflight.needed_files import find_resume
from siirl.preflight.plan import ResumePoint
from siirl.reporting.config_difference import flat, is_damaged, read_config
from siirl.reporting.earlier_rows import CONNECTION, OPENENV
from siirl.reporting.run_folder import CONFIG_FILE

CONTINUED = ("env.id", "env.max_episode_steps", "env.kwargs", "data.train_batch_size")
"""Keys on which the running episodes of a run with `rollout.n_steps` depend."""

FOLDERS = ("trainer.resume", "trainer.output_dir", "trainer.experiment_name")
LONG = 80  # characters of two values


def check_resume(config: SiiRLArguments, graph: TaskGraph) -> ResumePoint | None:
    """Check the checkpoint that `trainer.resume` names, and replace the key by its folder or None.

    Returns:
        The start of the run; None without `trainer.resume`.

    Raises:
        ConfigError: The folder holds no checkpoint, or one of a finished run or of another model.
        MissingAssetError: The folder of `trainer.resume` does not exist.
        CheckpointError: The checkpoint is incomplete, or of a pipeline that trains something else.
    """
    trainer = config.trainer
    wanted = trainer.resume
    folder = find_resume(trainer)
    total = trainer.total_steps
    trainer.resume = None if folder is None else str(folder)
    if folder is None:
        return (
            None
            if wanted is None
            else ResumePoint(
                f"new run: trainer.resume={wanted} found no checkpoint of {trainer.experiment_name}"
            )
        )
    checkpoint = resolve_checkpoint(folder)
    run = checkpoint.parent.parent
    place = f"trainer.resume={wanted}"
    _require_its_model(config, run, place=place)
    _require_its_encoder(config, run, place=place)
    if config.actor_rollout_ref.rollout.n_steps is not None:
        _require_its_episodes(config, run, place=place)
    require_engines(checkpoint, trained_engines(graph, config.agents))
    manifest = read_manifest(checkpoint)
    step = int(manifest["step"])
    if total is not None and step >= total and not manifest.get(EVALUATION_DUE, False):
        raise ConfigError(
            f"{place}: {folder} has finished step {step} of "
            f"trainer.total_steps={total}: raise "
            "trainer.total_steps, or evaluate the policy: siirl evaluate "
            f"checkpoint={folder}"
        )
    return ResumePoint(f"after step {step} of {folder}", step)


def _require_its_model(config: SiiRLArguments, run: Path, *, place: str) -> None:
    """Refuse to resume `run` with another kind of model; its weights would not load."""
    file, own = run / CONFIG_FILE, config.actor_rollout_ref.model.policy
    its = value_at(read_config(file), MODEL_POLICY)
    if its not in (None, own):
        raise ConfigError(
            f"{place}: that run has {MODEL_POLICY}={its}, but this job has {own}. "
            f"{_same_words(place, file)}"
        )


def _require_its_encoder(config: SiiRLArguments, run: Path, *, place: str) -> None:
    """Refuse to resume `run` with a video encoder that did not make the reward's memory."""
    file, own = run / CONFIG_FILE, config.reward
    its = value_at(read_config(file), "reward")
    if not isinstance(its, Mapping) or its.get("name") != own.name or own.name not in VIDEO_REWARDS:
        return
    if its.get("encoder") != own.encoder:
        raise ConfigError(
            f"{place}: that run has reward.encoder={its.get('encoder')}, but this job has "
            f"{own.encoder}, and the reward remembers embeddings. {_same_words(place, file)}"
        )


def _require_its_episodes(config: SiiRLArguments, run: Path, *, place: str) -> None:
    """Refuse to continue the running episodes of `run` with settings that change them."""
    file = run / CONFIG_FILE
    its, own = _differing(read_config(file), config)
    if its:
        raise ConfigError(
            f"{place}: that run has {' and '.join(its)}, but this job has {' and '.join(own)}, and "
            "its running episodes are continued (actor_rollout_ref.rollout.n_steps). "
            f"{_same_words(place, file)}"
        )


def _same_words(resume: str, file: Path) -> str:
    """The remedy of a job with other keys than the run. Groups on the command line override a file
    (`siirl.params.parser`), so the file replaces them.
    """
    return f"Repeat the words of its command, or replace them all by {resume} --config {file}."


def _differing(run: object, config: SiiRLArguments) -> tuple[list[str], list[str]]:
    """The words for `CONTINUED` keys of a run's configuration that differ from this job's, and this
    job's words; each entry of `env.kwargs` has its own.
    """
    its_words: list[str] = []
    own_words: list[str] = []
    for name in CONTINUED:
        group, key = name.split(".")
        own = getattr(getattr(config, group), key)
        its = (value_at(run, group) or {}).get(key, own)
        if key == "kwargs":
            its, own = _differing_arguments(its or {}, own, env=config.env.name)
            its_words += its
            own_words += own
        elif its != own:
            its_words.append(f"{name}={as_text(its)}")
            own_words.append(f"{name}={as_text(own)}")
    return its_words, own_words


def _differing_arguments(
    its: Mapping[str, Any], own: Mapping[str, Any], *, env: str
) -> tuple[list[str], list[str]]:
    """The words of both for each entry that differs; without those of the connection to an OpenEnv
    server.
    """
    passed = CONNECTION if env == OPENENV else ()
    names = [
        name
        for name in {**its, **own}
        if name not in passed and (name in its, its.get(name)) != (name in own, own.get(name))
    ]
    texts = {name: _told_apart(its.get(name), own.get(name)) for name in names}
    its_words, own_words = (
        [
            f"env.kwargs.{name}={texts[name][side]}" if name in one else f"no env.kwargs.{name}"
            for name in names
        ]
        for side, one in enumerate((its, own))
    )
    return its_words, own_words


def check_stream(config: SiiRLArguments, spec: EnvSpec, *, resume: str | None, group: int) -> None:
    """Check that an agent group's stream of tasks continues that of the checkpoint `resume`.

    For env=openenv, only the server knows the task, which is the name of its environment. Left out:
    prompts of files, which the run indexes.

    Raises:
        CheckpointError: Other tasks, weights or sampling, or another seed.
    """
    if resume is None or config.data.train_files:
        return
    state = read_state(resolve_checkpoint(Path(resume)) / STATE_FILE)
    saved = state.get(AGENTS, {}).get(group, state).get("loader", {})
    if "tasks" in saved:
        loader = make_task_loader(
            config.data, tasks=spec.tasks, ranks=OneProcess(), tasks_from=_source_of_tasks(config)
        )
        loader.load_state_dict(saved)


def _source_of_tasks(config: SiiRLArguments) -> str:
    """The setting from which the environment takes its tasks."""
    env = config.env
    if env.tasks is None and env.name == OPENENV:
        return f"the environment of the server at env.url={env.url}"
    own = next((key for key in ("tasks", "id", "dataset", "suite") if getattr(env, key)), "tasks")
    return f"env.{own}"


def resumed_policy(resume: str | None, *, first: bool, group: int) -> Path | None:
    """The folder of a group's policy in the checkpoint that the job continues."""
    if resume is None:
        return None
    return resolve_checkpoint(Path(resume)) / ("actor" if first else f"actor_{group}")


def changed_options(config: SiiRLArguments, resumed: Path) -> list[str]:
    """Options of the policy that differ from those in the resumed run's configuration; empty if it
    cannot be read, or for a job of several agents.
    """
    its = value_at(read_config(resumed.parents[2] / CONFIG_FILE), MODEL_OPTIONS)
    if not isinstance(its, dict) or config.agents:
        return []
    own = config.actor_rollout_ref.model.options
    names = its.keys() | own.keys()
    return sorted(n for n in names if (n in its, its.get(n)) != (n in own, own.get(n)))


def with_changes(begins: ResumePoint, config: SiiRLArguments) -> ResumePoint:
    """`begins` with the keys that differ from the configuration of the run that is continued.

    Left out: keys that name folders, and keys that either run lacks.
    """
    if config.trainer.resume is None:
        return begins
    known = {key.place: key for key in keys_of(SiiRLArguments)}
    run = resolve_checkpoint(Path(config.trainer.resume)).parent.parent
    its = dict(flat(read_config(run / CONFIG_FILE), known))
    own = dict(flat(yaml.safe_load(to_yaml(config)), known))
    changed = [
        _change(place, *_told_apart(its[place], value))
        for place, value in own.items()
        if place in its and place not in FOLDERS and its[place] != value
    ]
    return replace(begins, changed=tuple(changed))


def _change(place: str, its: str, own: str) -> str:
    """A changed key with both values, or its name alone where they are long."""
    return place if len(its) + len(own) > LONG else f"{place} {its} -> {own}"


def _told_apart(its: Any, own: Any) -> tuple[str, str]:
    """Two values that differ, as texts that differ too: in YAML, which puts the text `true` in
    quotes, where the command line's form is the same.
    """
    if as_text(its) != as_text(own):
        return as_text(its), as_text(own)
    written = [
        yaml.safe_dump([value], default_flow_style=True, width=math.inf) for value in (its, own)
    ]
    its_text, own_text = (text.strip().removeprefix("[").removesuffix("]") for text in written)
    return its_text, own_text


def unread_config(resume: str | None) -> Iterator[str]:
    """A warning if the configuration of the resumed run could not be compared with this one's."""
    if resume is None:
        return
    file = resolve_checkpoint(Path(resume)).parent.parent / CONFIG_FILE
    if is_damaged(file) or not file.is_file():
        fault = "is damaged" if file.is_file() else "is missing"
        yield (
            f"{file} {fault}, so this job's configuration was not compared with that of the run "
            "that it resumes."
        )
