"""Checks environments of other packages: `python check_ids.py < ids.json` prints a sentence for each
that does not fit the contract.

Episodes are cut at twelve steps; what a package does after them is not checked.
"""

import json
import sys

from envs.checker import check_env
from envs.gymnasium import GymnasiumEnv

STEPS = 12


def main() -> None:
    """Check every id of the list, in packages' order."""
    failed = {}
    for package, ids in json.load(sys.stdin).items():
        for id, options in ids.items():
            try:
                check_env(GymnasiumEnv(id, max_episode_steps=STEPS, **options))
            except (AssertionError, RuntimeError, ValueError) as error:
                failed[f"{package} {id}"] = f"{type(error).__name__}: {error}"
    print(json.dumps(failed, indent=1))


if __name__ == "__main__":
    main()
