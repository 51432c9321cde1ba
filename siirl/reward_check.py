"""`siirl reward-check checkpoint=… reward=…`: checks whether a reward ranks a policy's failures.

    siirl reward-check checkpoint=my_policy env=metaworld reward=video_value
    siirl reward-check checkpoint=outputs/run/TIME

It plays groups of rollouts from held-out start states and scores them step by step, as in training.
For each task it prints the number of groups that the reward ranks, its rank correlation with the
true distance if the environment reports one, and its rewards for videos that achieve nothing.

A run's configuration, with its reward, becomes the default. Two steps fill the reward's memory
before the measured ones. Results go to `reward_check.json` in a new run folder.

Exit status: 1 failed, 2 refused, 130, 143 or 129 when a signal ends it.
"""

import sys
from collections.abc import Sequence

from siirl import interrupts
from siirl.interrupts import leave
from siirl.params.command_help import help_of_words
from siirl.params.command_line import note_repeated
from siirl.params.command_words import Word, named_policy, split_words, whole_number
from siirl.terminal import warning_lines
from siirl.terminal.exit_status import exit_status

WORDS = {
    "checkpoint": Word("", "policy folder, checkpoint, or run folder", "PATH"),
    "steps": Word("4", "measures the episodes of this many training steps"),
}
"""The command's own words."""
MOST_STEPS = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"--help", "-h"} & set(words):
        print(help_of_words(__doc__, "siirl.reward_check", WORDS), flush=True)
        return 0
    return exit_status(lambda: _check(words), what="the check")


def _check(words: list[str]) -> None:
    note_repeated(words)
    own, words = split_words(words, WORDS)
    steps = whole_number("steps", own["steps"], least=1, most=MOST_STEPS)
    policy = named_policy(own["checkpoint"], words=words)
    from siirl.jobs.reward_ranking import check_reward  # slow: imports torch

    check_reward(policy, words, steps=steps)


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    warning_lines.show()
    leave(main())


if __name__ == "__main__":
    command()
