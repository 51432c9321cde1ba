"""`siirl evaluate checkpoint=…`: held-out success per task, with 95 % intervals.

    # newest checkpoint of a run, its own environment
    siirl evaluate checkpoint=outputs/run/TIME
    siirl evaluate checkpoint=assets/tiny_vla trainer.val_episodes=100
    # agent group 1 of a run with several, in its own environment
    siirl evaluate checkpoint=outputs/run/TIME/checkpoints/step_00000040/actor_1

A run's configuration becomes the default. Results go to `evaluation.json` in a new run folder, with
videos of `trainer.record_val_episodes` episodes.

`env=libero env.suite=…` runs LIBERO's published protocol: all tasks of the suites from all 50
initial states (`env.tasks=` and `env.states=split` select fewer).
"""

import sys
from collections.abc import Sequence

from siirl import interrupts
from siirl.errors import UnknownNameError
from siirl.files.paths import usable_path
from siirl.interrupts import leave
from siirl.params.command_help import help_of_words
from siirl.params.command_line import note_repeated
from siirl.params.command_words import Word, named_policy, split_words
from siirl.terminal import warning_lines
from siirl.terminal.exit_status import exit_status

WORDS = {
    "checkpoint": Word(
        "", "policy folder (hf://owner/name on the Hub), checkpoint, or run folder", "PATH"
    ),
    "actions": Word("both", "kind of action: sampled, argmax (greedy) or both"),
    "resume": Word("", "run folder of an interrupted LIBERO protocol to continue", "FOLDER"),
}
"""The command's own words."""
ACTIONS = {"sampled": (False,), "argmax": (True,), "both": (False, True)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Exit status: 0 done, 1 failed, 2 refused, 130, 143 or 129 interrupted, 141 output closed.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"--help", "-h"} & set(words):
        print(help_of_words(__doc__, "siirl.evaluate", WORDS), flush=True)
        return 0
    # the notes of a run folder describe how to resume training
    return exit_status(lambda: _evaluate(words), what="the evaluation", notes=False)


def _evaluate(words: list[str]) -> None:
    note_repeated(words)
    own, words = split_words(words, WORDS)
    checkpoint, actions, resume = (own[name] for name in WORDS)
    if actions not in ACTIONS:
        raise UnknownNameError.of(kind="value of actions=", name=actions, known=ACTIONS)
    policy = named_policy(checkpoint, words=words)
    before = usable_path(resume, key="resume") if resume else None
    # slow: imports torch; Ctrl-C works meanwhile
    from siirl.jobs.evaluation import evaluate

    evaluate(policy, words, kinds=ACTIONS[actions], resume=before)


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    warning_lines.show()
    leave(main())


if __name__ == "__main__":
    command()
