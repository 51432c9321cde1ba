"""`python -m siirl.gpu_checks.child FOLDER [--force-group]`: checks in this process, in turn.

Reads a line `NAME MODULE:NAME ENDS_AT` for each check, whose last word is the parent's
`time.monotonic()`: the processes of a machine share this clock. Writes figures, and how each check
ended, to FOLDER/NAME.json. An error that is not a verdict ends the process with its traceback,
which the parent reads.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from pkgutil import resolve_name

import torch

from siirl.engine.training.rank_device import prepare_device
from siirl.gpu_checks.check import FORCE_GROUP, CheckFailed, CheckSkipped, Trial

FAILED = 1


def main(folder: Path, checks: Iterable[str], *, force_group: bool) -> int:
    """Run the checks in turn up to the first that fails, and return the exit status."""
    for line in checks:
        name, function, ends_at = line.split()
        file = folder / f"{name}.json"
        device = prepare_device(deterministic=False)
        trial = Trial(device, float(ends_at), file, force_group=force_group)
        torch.manual_seed(0)
        try:
            resolve_name(function)(trial)
        except CheckSkipped as reason:
            end(trial, "skipped", str(reason))
        except CheckFailed as reason:
            end(trial, "failed", str(reason))
            return FAILED
        else:
            end(trial, "OK")
    return 0


def end(trial: Trial, how: str, reason: str = "") -> None:
    """Write a check's result atomically, so that the parent reads complete files."""
    new = trial.file.with_suffix(".new")
    new.write_text(json.dumps({"figures": trial.figures, "ended": how, "reason": reason}))
    new.replace(trial.file)


if __name__ == "__main__":
    _, place, *options = sys.argv
    sys.exit(main(Path(place), sys.stdin, force_group=FORCE_GROUP in options))
