"""Every key is read somewhere, or refused where nothing reads it."""

import re
from pathlib import Path

from siirl.algos.advantages import ESTIMATOR_SETTINGS
from siirl.params.env_args import POOL_KEYS
from siirl.params.parser import known_keys
from siirl.params.registered_names import estimators_taking

# Read where keys are declared and judged, since their only use belongs there.
READ_WHERE_JUDGED = {
    "dag.apportion": "preflight/group_placement.py",
    "trainer.gpu_memory_gib": "preflight/machine.py",
    # of the documents' two values one is refused: nothing to choose
    "actor_rollout_ref.actor.strategy": "params/model_args.py",
    "actor_rollout_ref.rollout.name": "preflight/environment_checks.py",
    # these three become the parts of a reward, which alone are passed on
    "custom_reward_function.path": "params/reward_args.py",
    "custom_reward_function.name": "params/reward_args.py",
    "reward.functions": "params/reward_args.py",
    "env.kwargs": "params/env_args.py",
    "trainer.threads_per_rank": "params/sizes.py",
    "agents": "params/agents.py",
    "user_groups": "params/parser.py",
    "user_modules": "params/plug_ins.py",
}
# Names that stand for many things in the code: there the group must stand before them, as in
# `cluster.mode`.
COMMON_NAMES = frozenset(
    {
        "name",
        "n",
        "id",
        "path",
        "type",
        "seed",
        "mode",
        "address",
        "steps",
        "enable",
        "tasks",
        "options",
        "kwargs",
        "lr",
    }
)

USES_IN_PREFLIGHT = (
    "prepare",
    "check_text",
    "needed_files",
)  # they make, load or open what a key names
OTHER_NAMES = {"kl_ctrl": "control"}  # of a group, in the code that reads it


def is_read(place: str, code: str) -> bool:
    """Whether the code has `.leaf`, or `group.leaf` where the leaf's name is a common one."""
    group, leaf = place.split(".")[-2:]
    before = rf"\b\w*({group}|{OTHER_NAMES.get(group, group)})\w*" if leaf in COMMON_NAMES else ""
    return re.search(rf"{before}\.{leaf}\b", code) is not None


def only_judges(file: Path, package: Path) -> bool:
    """Whether a file declares keys or checks their values: that is not a use."""
    return package / "params" in file.parents or (
        package / "preflight" in file.parents and file.stem not in USES_IN_PREFLIGHT
    )


def test_every_key_is_read_or_refused(repository: Path) -> None:
    package = repository / "siirl"
    files = [file for file in sorted(package.rglob("*.py")) if not only_judges(file, package)]
    # takes the trajectory reward's settings as a whole
    files.append(repository / "vjepa" / "reward.py")
    code = "\n".join(file.read_text() for file in files)
    # passed by name
    of_estimators = {f"algorithm.{name}" for name in ESTIMATOR_SETTINGS if estimators_taking(name)}
    unread = [
        place
        for place, key in known_keys({}).items()
        if not key.metadata["derived"]  # an old name, translated
        and place not in READ_WHERE_JUDGED.keys() | of_estimators
        # handed to the constructor
        and not (place.startswith("env.") and place.split(".")[1] not in POOL_KEYS)
        and not is_read(place, code)
    ]
    assert unread == [], f"{len(unread)} keys do nothing: {', '.join(unread)}"


def test_the_exceptions_are_read_where_they_say(repository: Path) -> None:
    for place, file in READ_WHERE_JUDGED.items():
        assert place.split(".")[-1] in (repository / "siirl" / file).read_text()
