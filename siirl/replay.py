"""`siirl replay RUN_FOLDER [UID]`: simulates a recorded episode again and records a video.

    # lists the recorded episodes
    siirl replay outputs/run/TIME
    siirl replay outputs/run/TIME val-000000-sampled-000003 --size 512 --every 1
    siirl replay outputs/run/TIME 000004-00000037-000 env.render_quality=full
    # of agent group 1, in its environment
    siirl replay outputs/run/TIME/agent_1
    # every recorded success as a LeRobot data set, with an observation for each step
    siirl replay outputs/run/TIME --lerobot my_dataset

The video may have every frame, a larger size or another camera. The run has saved seed and actions
next to its video, so no policy or checkpoint is needed. Overrides that change the physics change
the episode. Exit status: 0 the episode ended as recorded, 1 it ended differently (its video is
written), 2 there is nothing to play. Left out: episodes that the run did not record
(trainer.record_episodes, trainer.record_val_episodes).
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.base import Environment, FrameBuffer, FrameRequest, Frames
from envs.registry import make_env
from siirl import interrupts
from siirl.data_coordinator.lerobot import VERSIONS
from siirl.errors import (
    CheckpointError,
    ConfigError,
    MissingAssetError,
    SiirlError,
    UnknownNameError,
)
from siirl.files.documents import is_count, read_object
from siirl.interrupts import leave
from siirl.params.command_help import argument_parser, integer, path_flag
from siirl.params.command_line import note_repeated
from siirl.params.env_args import LARGEST_PICTURE
from siirl.params.parser import parse_first
from siirl.params.plug_ins import import_user_modules
from siirl.reporting.agent_folders import hint, run_of_recordings
from siirl.reporting.command_console import CommandConsole
from siirl.reporting.console import cell, narrow_table
from siirl.reporting.recorder import VIDEOS_FOLDER, VideoSample, annotate, read_index, write_video
from siirl.reporting.rollout_files import ROLLOUTS_FOLDER
from siirl.reporting.run_folder import CONFIG_FILE
from siirl.terminal import warning_lines
from siirl.terminal.exit_status import FAILED, exit_status
from siirl.terminal.printable import printable
from siirl.terminal.terminal_lines import say

STREAM = "replay"
FRAMES_PER_SECOND = 20
SIZE = 512  # pixels
DEFAULTS = {"every": 1, "size": SIZE, "lerobot_version": VERSIONS[-1], "fps": FRAMES_PER_SECOND}
ANOTHER = "Play another episode."
NEEDED = {
    "uid",
    "step",
    "task",
    "seed",
    "success",
    "outcome",
    "environment_steps",
    "video",
}  # of a row of the index
Row = dict[str, Any]
Outcome = tuple[bool | None, int]
"""Success, if the environment reports it, and the number of environment steps."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    flags = _parser().parse_intermixed_args(argv)
    failures = (SiirlError, OSError, ValueError, RuntimeError)
    return exit_status(lambda: _run(flags), what="the replay", failures=failures)


def _run(flags: argparse.Namespace) -> int:
    _check_read(flags)
    _fill_in(flags)
    check_frames(flags)
    note_repeated(flags.overrides)
    if flags.lerobot is not None and flags.uid is not None and "=" in flags.uid:
        flags.uid, flags.overrides = None, [flags.uid, *flags.overrides]  # all episodes
    rows = recorded(flags.folder)
    if flags.lerobot is not None:
        from siirl.jobs.recorded_data_set import write_recorded  # pyarrow takes a while

        return write_recorded(flags, rows, recording_of=recording_of)
    if flags.uid is None:
        show(rows)
        return 0
    return replay(
        flags.folder,
        _find(rows, flags.uid),
        flags.overrides,
        FrameRequest(flags.every, flags.size),
        flags.output,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__, "siirl.replay")
    parser.add_argument("folder", type=path_flag, help="folder of a run, outputs/<name>/<time>")
    parser.add_argument("uid", nargs="?", help="episode to replay; default: list the episodes")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],  # without a default, argparse calls it required
        help="as for siirl train, for example env.render_quality=full",
    )
    parser.add_argument("--every", type=integer, help="environment steps between two frames (1)")
    parser.add_argument(
        "--size",
        type=integer,
        help=f"height and width in pixels, at most {LARGEST_PICTURE} ({SIZE})",
    )
    parser.add_argument(
        "--output",
        type=path_flag,
        default=None,
        help="video file; by default replay_<uid>.mp4 in the run folder",
    )
    parser.add_argument(
        "--lerobot",
        type=path_flag,
        metavar="FOLDER",
        help="write the recorded successes as a LeRobot data set instead of a video",
    )
    parser.add_argument("--lerobot-version", choices=VERSIONS, help=f"its layout ({VERSIONS[-1]})")
    parser.add_argument("--fps", type=integer, help=f"its frames per second ({FRAMES_PER_SECOND})")
    return parser


def _check_read(flags: argparse.Namespace) -> None:
    """Refuse flags that the chosen result does not read.

    Raises:
        ConfigError: Names the flag.
    """
    given = {name: value for name, value in vars(flags).items() if value is not None}
    of_film = [name for name in ("every", "size", "output") if name in given]
    of_data_set = [name for name in ("lerobot_version", "fps") if name in given]
    if flags.lerobot is not None and of_film:
        raise ConfigError(
            f"--{of_film[0]} {given[of_film[0]]} is read for a video, but --lerobot writes a data "
            "set: leave one of them out."
        )
    if flags.lerobot is None and of_data_set:
        raise ConfigError(
            f"--{of_data_set[0].replace('_', '-')} {given[of_data_set[0]]} is read for a LeRobot "
            "data set: add --lerobot FOLDER."
        )
    if flags.lerobot is None and flags.uid is None and of_film:
        raise ConfigError(
            f"--{of_film[0]} {given[of_film[0]]} is read for the video of an episode: name its UID "
            f"after {flags.folder}."
        )


def _fill_in(flags: argparse.Namespace) -> None:
    for name, default in DEFAULTS.items():
        if getattr(flags, name) is None:
            setattr(flags, name, default)


def check_frames(flags: argparse.Namespace) -> None:
    """Refuse invalid frame settings and an unwritable video path before the simulation.

    Raises:
        ConfigError: Has the value and the bounds.
    """
    if flags.every < 1:
        raise ConfigError(
            f"--every {flags.every} must be at least 1: environment steps between two frames."
        )
    if not 1 <= flags.size <= LARGEST_PICTURE:
        raise ConfigError(f"--size {flags.size} must be at least 1 and at most {LARGEST_PICTURE}.")
    if flags.output is not None and not flags.output.absolute().parent.is_dir():
        raise ConfigError(
            f"--output {flags.output}: there is no folder {flags.output.absolute().parent}; make "
            "it first."
        )


def recorded(folder: Path) -> list[Row]:
    """Recorded episodes of the run, from the index of its videos.

    Raises:
        MissingAssetError: The folder holds no run, or the run recorded nothing.
    """
    rows = [row for row in read_index(folder / VIDEOS_FOLDER) if _can_be_played(row)]
    run, _ = run_of_recordings(folder)
    if not rows and (folder / ROLLOUTS_FOLDER).is_dir():
        raise MissingAssetError(
            f"{folder} is a run of a text environment, which has no simulator and no videos: its "
            f"prompts and answers are in {folder / ROLLOUTS_FOLDER}. Type: siirl report {folder} "
            "--rollouts"
        )
    if not rows or not (run / CONFIG_FILE).is_file():
        raise MissingAssetError(
            f"{folder} is not a run folder with recorded episodes: give one below outputs/, of a "
            "run with trainer.record_episodes or "
            f"trainer.record_val_episodes above 0.{hint(folder, VIDEOS_FOLDER)}"
        )
    return rows


def _can_be_played(row: Row) -> bool:
    return (
        row.keys() >= NEEDED
        and is_count(row["seed"])
        and is_count(row["environment_steps"])
        and (row["success"] is None or isinstance(row["success"], bool))
    )


def show(rows: Sequence[Row]) -> None:
    """A table of the recorded episodes."""
    table = narrow_table("recorded episodes", first="uid")
    for name in ("step", "task", "outcome", "steps"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(
            *(
                cell(str(row[name]))
                for name in ("uid", "step", "task", "outcome", "environment_steps")
            )
        )
    CommandConsole().print(table)


def replay(
    folder: Path, row: Row, overrides: Sequence[str], frames: FrameRequest, output: Path | None
) -> int:
    """Play one episode and write its video; return 0 if it ends as recorded."""
    actions, options = recording_of(folder, row)
    run, group = run_of_recordings(folder)
    config = parse_first(overrides, config_file=run / CONFIG_FILE, group=group)
    import_user_modules(config.user_modules)
    environment = make_env(config.env.name, **config.env.constructor_kwargs())
    film, outcome = asyncio.run(play(environment, row, actions, options, frames))
    file = output or folder / f"replay_{row['uid'].replace('/', '_')}.mp4"
    sample = VideoSample(
        **{name: row[name] for name in VideoSample.__dataclass_fields__ if name in row}
        | {"success": outcome[0]}
    )
    write_video(file, annotate(film, sample), frames_per_second=FRAMES_PER_SECOND)
    expected = (row["success"], row["environment_steps"])
    print(
        printable(
            f"{row['task']}, seed {row['seed']}: {describe(outcome)}, "
            f"recorded {describe(expected)}\nvideo  {file}"
        )
    )
    if outcome == expected:
        return 0
    say(
        "siirl: the episode ended differently. Its seed and actions fix it only for the same "
        "environment and the same version of the simulator."
    )
    return FAILED


def recording_of(folder: Path, row: Row) -> tuple[NDArray[Any], dict[str, Any]]:
    """Executed actions next to a video, and the reset options of their episode.

    Actions are float32 [T, A], or int64 [T] for a discrete space.

    Raises:
        MissingAssetError: The run kept none.
        CheckpointError: They are damaged.
    """
    file = (folder / VIDEOS_FOLDER / row["video"]).with_suffix(".json")
    if not file.is_file():
        raise MissingAssetError(
            f"The actions of episode {row['uid']} are missing ({file}): the run wrote only its "
            "video."
        )
    recording = read_object(file, remedy=ANOTHER)
    options = recording.get("options", {})  # siirl 0.1 did not save options
    try:
        actions = np.asarray(recording.get("actions"))
    except ValueError:  # rows of different lengths
        actions = np.asarray(None)
    if actions.dtype.kind not in "if" or not actions.ndim or not isinstance(options, dict):
        raise CheckpointError(
            f"{file} is damaged. Expected: actions, numbers of one shape, and options by name. "
            f"{ANOTHER}"
        )
    return actions.astype(np.float32) if actions.dtype.kind == "f" else actions, options


async def play(
    environment: Environment,
    row: Row,
    actions: NDArray[Any],
    options: Mapping[str, Any],
    request: FrameRequest,
) -> tuple[Frames, Outcome]:
    """Simulate the episode in this process, up to its end."""
    film = FrameBuffer()
    try:
        _, info = await environment.reset(
            seed=row["seed"],
            options={**options, "task": row["task"], "frames": {STREAM: request}},
        )
        film.extend(info["frames"])
        *_, info = await environment.step_chunk(list(actions))
        film.extend(info["frames"])
    finally:
        await environment.close()
    return film.take()[STREAM], (
        bool(info["success"]) if environment.spec.reports_success else None,
        int(info["executed"]),
    )


def describe(outcome: Outcome) -> str:
    """An outcome as text."""
    success, steps = outcome
    if success is None:
        verdict = "unscored"
    elif success:
        verdict = "success"
    else:
        verdict = "failure"
    return f"{verdict} after {steps} steps"


def _find(rows: Sequence[Row], uid: str) -> Row:
    found = [row for row in rows if row["uid"] == uid]
    if not found:
        raise UnknownNameError.of(
            kind="recorded episode", name=uid, known=[row["uid"] for row in rows]
        )
    return found[0]


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    warning_lines.show()
    leave(main())


if __name__ == "__main__":
    command()
