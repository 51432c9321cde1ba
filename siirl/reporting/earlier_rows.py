"""Metrics of the runs that a resumed run continues: its curves begin there, and so does success
before training.

Left out: earlier videos and rollouts, which stay in the folders of their runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from siirl.reporting.config_difference import NO_VALUE, between, read_config
from siirl.reporting.jsonl import read_rows
from siirl.reporting.metric_writers import METRICS_FILE
from siirl.reporting.run_folder import CONFIG_FILE

CHECKPOINTS = "checkpoints"
EVALUATION = (
    "data.val_files",
    "data.heldout_share",
    "trainer.val_episodes",
    "trainer.val_seed_offset",
    "trainer.val_samples",
)
"""Keys that choose the episodes of an evaluation, besides those of `env`."""
SERVING = ("num_servers", "envs_per_server", "deadline_s", "max_replays", "max_failed_share")
"""Keys of `env` that change no episode."""
OPENENV = "openenv"
CONNECTION = ("token_file", "deadline_s", "connect_deadline_s", "max_message_mib")
"""Arguments of env=openenv that change no episode."""


def earlier_rows(run: Path, *, before: int) -> list[dict[str, Any]]:
    """Rows of the steps below `before`, oldest first.

    Empty for a run that resumed nothing, or whose earlier run no longer exists.

    Args:
        run: Folder of the resumed run.
        before: First step of the resumed run.

    Raises:
        ValueError: A damaged line in an earlier run's metrics.jsonl.
    """
    return [row for _, found in reversed([*_earlier_runs(run, before)]) for row in found]


def comparable_rows(run: Path, *, before: int) -> tuple[list[dict[str, Any]], list[str]]:
    """`earlier_rows` of the runs that were evaluated on the same episodes as `run`.

    Returns:
        The rows, and the keys that differ in the newest run that was evaluated on others; none if
        there is no such run.
    """
    rows: list[dict[str, Any]] = []
    for earlier, found in _earlier_runs(run, before):
        changed = _changed(run, earlier)
        if found and changed:
            return rows, changed
        rows = found + rows
    return rows, []


def other_episodes(changed: Sequence[str]) -> str:
    """Sentence for readers of a run whose `comparable_rows` end at `changed` keys."""
    return (
        "The run that was resumed was evaluated on other episodes (changed: "
        f"{', '.join(changed)}), so its evaluations are not compared with these."
    )


def _changed(run: Path, earlier: Path) -> list[str]:
    """Keys that choose episodes and differ between the runs.

    An OpenEnv server may return at another address: a run whose server reports another environment
    is not resumed (`TaskLoader.load_state_dict`).
    """
    files = {"run": run / CONFIG_FILE, "earlier": earlier / CONFIG_FILE}
    changed = {
        key for key, values in between(files) if _chooses_episodes(key) and NO_VALUE not in values
    }
    own, its = (_arguments_of_openenv(file) for file in files.values())
    if own is not None and its is not None:
        changed.discard("env.url")
        if own == its:
            changed.discard("env.kwargs")
    return sorted(changed)


def _arguments_of_openenv(config_file: Path) -> dict[str, Any] | None:
    """Arguments of env=openenv that choose episodes; None for another environment."""
    env = read_config(config_file).get("env")
    if not isinstance(env, dict) or env.get("name") != OPENENV:
        return None
    kwargs = env.get("kwargs")
    given = kwargs if isinstance(kwargs, dict) else {}
    return {name: value for name, value in given.items() if name not in CONNECTION}


def _chooses_episodes(key: str) -> bool:
    group, _, name = key.partition(".")
    return key in EVALUATION or (group == "env" and name not in SERVING)


def _earlier_runs(run: Path, before: int) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """The runs that `run` continues, newest first, and their rows of the steps below `before`."""
    seen = {run.resolve()}
    earlier = _resumed(run)
    while earlier is not None and earlier.resolve() not in seen:
        seen.add(earlier.resolve())
        found = [row for row in read_rows(earlier / METRICS_FILE) if _is_below(row, before)]
        yield earlier, found
        before = min((row["step"] for row in found), default=before)
        earlier = _resumed(earlier)


def _is_below(row: Mapping[str, Any], step: int) -> bool:
    return type(row.get("step")) is int and 0 <= row["step"] < step


def _resumed(run: Path) -> Path | None:
    """Folder of the run that `run` resumed: `trainer.resume` names it, or a checkpoint in it."""
    trainer = read_config(run / CONFIG_FILE).get("trainer")
    resume = trainer.get("resume") if isinstance(trainer, dict) else None
    if not isinstance(resume, str):
        return None
    folder = Path(resume)
    return folder.parent.parent if folder.parent.name == CHECKPOINTS else folder
