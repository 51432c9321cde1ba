"""A key that does nothing is a lie: every key must be read somewhere, or be refused where nobody reads it."""

import re
from pathlib import Path

from siirl.algos.advantages import ESTIMATOR_SETTINGS
from siirl.params.env_args import POOL_KEYS
from siirl.params.estimators import that_take
from siirl.params.parser import known_keys

# Read in siirl/params itself, where their only use belongs.
READ_IN_PARAMS = {
    "actor_rollout_ref.actor.strategy": "model_args.py",  # of the documents' two values one is refused, so there is nothing to choose
    "actor_rollout_ref.rollout.name": "domain_checks.py",
    "custom_reward_function.path": "reward_args.py",  # these three become the parts of a reward, which alone are passed on
    "custom_reward_function.name": "reward_args.py",
    "reward.functions": "reward_args.py",
    "env.kwargs": "env_args.py",
    "trainer.threads_per_rank": "sizes.py",
    "trainer.output_dir": "run_folder.py",
    "trainer.experiment_name": "run_folder.py",
    "user_groups": "parser.py",
    "user_modules": "plug_ins.py",
}
# Names that stand for many things in the code: there the group must stand before them, as in `cluster.mode`.
COMMON_NAMES = frozenset(
    {"name", "n", "id", "path", "type", "seed", "mode", "address", "steps", "enable", "tasks", "options", "kwargs", "lr"}
)

OTHER_NAMES = {"kl_ctrl": "control"}  # of a group, in the code that reads it


def is_read(place: str, code: str) -> bool:
    """Whether the code has `.leaf`, or `group.leaf` where the leaf's name is a common one."""
    group, leaf = place.split(".")[-2:]
    before = rf"\b\w*({group}|{OTHER_NAMES.get(group, group)})\w*" if leaf in COMMON_NAMES else ""
    return re.search(rf"{before}\.{leaf}\b", code) is not None


def test_every_key_is_read_or_refused(repository: Path) -> None:
    package = repository / "siirl"
    code = "\n".join(file.read_text() for file in sorted(package.rglob("*.py")) if package / "params" not in file.parents)
    code += (package / "params" / "files.py").read_text()  # files that keys name
    code += (repository / "vjepa" / "reward.py").read_text()  # the trajectory reward's settings, handed over as a whole
    of_estimators = {f"algorithm.{name}" for name in ESTIMATOR_SETTINGS if that_take(name)}  # handed over by name
    unread = [
        place
        for place, key in known_keys({}).items()
        if not key.metadata["derived"]  # an old name, translated
        and place not in READ_IN_PARAMS.keys() | of_estimators
        and not (place.startswith("env.") and place.split(".")[1] not in POOL_KEYS)  # handed to the constructor
        and not is_read(place, code)
    ]
    assert unread == [], f"{len(unread)} keys do nothing: {', '.join(unread)}"


def test_the_exceptions_are_read_where_they_say(repository: Path) -> None:
    for place, file in READ_IN_PARAMS.items():
        assert place.split(".")[-1] in (repository / "siirl" / "params" / file).read_text()
