"""Flags of `siirl warm-start`: which of them a warm start reads, and their defaults.

Defaults depend on the kind of policy and on the environment. Left out: parsing
(`siirl.warm_start`).
"""

import argparse
from collections.abc import Mapping, Sequence

from siirl.errors import ConfigError
from siirl.imitation.sft_examples import SFT_SOURCES

TEXT_DEFAULTS = {"batch_rows": 128, "learning_rate": 1.5e-3, "stop_at": 0.4}
# For each task. With 700 updates for differences-2, sums-3 and bases-3 together, 16 % of samples
# were right, and a batch of RL had hardly any signal; 2100 updates gave 41 % (docs/learning.md).
UPDATES_OF_A_TASK = 700
ROBOT_DEFAULTS = {
    **{"updates": 300, "batch_rows": 128, "learning_rate": 1e-3},
    **{"noise": 0.3, "target_noise": 0.0, "fit_proprioception": False, "groups": 4},
}
OF_TEXT = ("stop_at",)
"""Flags that only warm starts of language models read."""
OF_ROBOTS = (
    *("demonstrations", "noise", "target_noise", "fit_proprioception", "groups"),
    *("clips", "expert", "lerobot", "lerobot_cameras"),
)
DEMONSTRATIONS = {"libero": 12}  # of each task, else two; LIBERO's are those of the shipped weights
DIFFERENT_DEFAULTS = {
    "metaworld": {"target_noise": 0.25},  # measured there only (benchmarks.any_tasks)
    "libero": {"updates": 500, "noise": 0.15, "fit_proprioception": True},  # docs/libero.md
}


def check_read(flags: argparse.Namespace, *, env: str) -> None:
    """Refuse flags that a warm start of this environment does not read.

    Raises:
        ConfigError: Names the flag.
    """
    text = env in SFT_SOURCES
    asked = {name for name, value in vars(flags).items() if value not in (None, [])}
    for name in OF_ROBOTS if text else OF_TEXT:
        if name in asked:
            raise ConfigError(
                f"--{name.replace('_', '-')} is read by warm starts of "
                f"{'robots' if text else 'language models'}, but env.name={env} has "
                f"{'a language model' if text else 'none'}: leave it out."
            )
    if "lerobot" in asked and asked & {"expert", "noise"}:
        name = "expert" if "expert" in asked else "noise"
        raise ConfigError(
            f"--{name} is read if an expert gives the demonstrations, but --lerobot "
            f"{flags.lerobot} provides them: leave one of the two out."
        )
    if "lerobot_cameras" in asked and "lerobot" not in asked:
        raise ConfigError(
            f"--lerobot-cameras {flags.lerobot_cameras} names cameras of a data set: add --lerobot."
        )


def text_defaults(tasks: Sequence[str]) -> dict[str, float]:
    """Defaults of the flags: tasks share batches, so more tasks need more updates."""
    return {**TEXT_DEFAULTS, "updates": UPDATES_OF_A_TASK * len(tasks)}


def fill(flags: argparse.Namespace, defaults: Mapping[str, float]) -> None:
    """Fill in flags that were not given with the defaults of policy and environment."""
    for name, value in defaults.items():
        if getattr(flags, name) is None:
            setattr(flags, name, value)
