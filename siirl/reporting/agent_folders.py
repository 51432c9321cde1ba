"""Folders of a run's agent groups, beside those of its lowest group: `agent_N/` has recordings, and
`checkpoints/<step>/actor_N/` weights.

Left out: writing them (`siirl.dag_worker.agent_groups`).
"""

import re
from pathlib import Path

from siirl.reporting.run_folder import CONFIG_FILE

RECORDINGS = re.compile(r"agent_(\d+)")
WEIGHTS = re.compile(r"actor_(\d+)")


def run_of_recordings(folder: Path) -> tuple[Path, int | None]:
    """Run folder and agent group of `RUN/agent_N`; for any other folder, the folder itself and
    None.
    """
    return _run(folder, RECORDINGS, run=folder.absolute().parent)


def run_of_weights(folder: Path) -> tuple[Path, int | None]:
    """Run folder and agent group of `RUN/checkpoints/<step>/actor_N`; for any other folder, the
    folder itself and None.
    """
    return _run(folder, WEIGHTS, run=folder.absolute().parent.parent.parent)


def folders_of_agents(run: Path, content: str) -> list[Path]:
    """The folders `agent_N` of a run with a non-empty folder `content`."""
    return sorted(
        folder
        for folder in run.glob("agent_*")
        if RECORDINGS.fullmatch(folder.name) and _holds_something(folder / content)
    )


def hint(run: Path, content: str) -> str:
    """Sentence that names the folders of other agents with `content`; empty if there are none."""
    found = folders_of_agents(run, content)
    return f" Its other agents have some: {', '.join(map(str, found))}." if found else ""


def _holds_something(folder: Path) -> bool:
    return any(file.is_file() and file.stat().st_size > 0 for file in folder.rglob("*"))


def _run(folder: Path, pattern: re.Pattern[str], *, run: Path) -> tuple[Path, int | None]:
    name = pattern.fullmatch(folder.name)
    if name is None or not (run / CONFIG_FILE).is_file():
        return folder, None
    return run, int(name[1])
