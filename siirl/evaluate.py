"""`python -m siirl.evaluate checkpoint=…`: success of a policy on held-out episodes, per task, with
counts and 95 % intervals.

    # newest checkpoint of a run, its own environment
    python -m siirl.evaluate checkpoint=outputs/run/2026-11-21_12-00-00
    python -m siirl.evaluate checkpoint=assets/tiny_vla env=mujoco trainer.val_episodes=100

`checkpoint` is a policy folder, a checkpoint, or a run folder; a run's own configuration is the
default then. Everything else is as for `siirl.train`. `actions=sampled|argmax|both` chooses how the
policy acts. Results go to `evaluation.json` in a run folder of their own, with videos of
`trainer.record_val_episodes` episodes.

With `env=libero env.suite=…` it is LIBERO's published protocol, all tasks of the suites from all 50
initial states (`env.tasks=` and `env.states=split` ask for less); `resume=FOLDER` goes on with one
that was interrupted (siirl.jobs.libero_protocol).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siirl import interrupts
from siirl.errors import ConfigError, SiirlError, UnknownNameError
from siirl.interrupts import leave
from siirl.params.exit_status import FAILED, REFUSED, end_without_reader, interrupted
from siirl.params.printable import printable
from siirl.params.refusals import REFUSALS

ACTIONS = {"sampled": (False,), "argmax": (True,), "both": (False, True)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0 done, 1 failed, 2 refused, 130, 143 or 129
    interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"--help", "-h"} & set(words):
        print(__doc__)
        return 0
    try:
        checkpoint, words = _take(words, "checkpoint", default=None)
        actions, words = _take(words, "actions", default="both")
        resume, words = _take(words, "resume", default=None)
        flags = [word for word in words if word.startswith("-")]
        if flags:
            raise UnknownNameError.of(kind="flag", name=flags[0], known=["--help"])
        if checkpoint is None:
            raise ConfigError(
                "Which policy? Give checkpoint=FOLDER: a policy folder, a checkpoint, or a run folder."
            )
        if actions not in ACTIONS:
            raise UnknownNameError.of(kind="value of actions=", name=str(actions), known=ACTIONS)
        policy, before = (
            Path(checkpoint).expanduser(),
            None if resume is None else Path(resume).expanduser(),
        )
        from siirl.jobs.evaluation import (
            evaluate,  # slow: it needs torch, and Ctrl-C is to be heard meanwhile
        )

        evaluate(policy, words, kinds=ACTIONS[str(actions)], resume=before)
    except REFUSALS as error:
        return _end(REFUSED, str(error))
    except SiirlError as error:
        return _end(FAILED, f"the evaluation failed: {error}")
    except KeyboardInterrupt as interrupt:
        return _end(interrupted(interrupt), "interrupted")
    except BrokenPipeError:
        return end_without_reader()
    return 0


def _end(status: int, sentence: str) -> int:
    """Tell why it ends; the notes of the run folder are left out, which tell how training goes on."""
    print(printable(f"siirl: {sentence}"), file=sys.stderr)
    return status


def _take(words: list[str], key: str, *, default: Any) -> tuple[str | None, list[str]]:
    """The value of the last `key=…` among `words`, and the other words."""
    found = [word for word in words if word.startswith(f"{key}=")]
    return (found[-1].partition("=")[2] if found else default), [
        word for word in words if word not in found
    ]


def command() -> None:
    """The command as a process of its own, which signals may end."""
    interrupts.listen()
    leave(main())


if __name__ == "__main__":
    command()
