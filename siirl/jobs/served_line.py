"""Builds the command that trains on an environment behind `siirl serve` as on the environment
itself.

The served environment's file below configs/env chooses model, rollout, trainer and lengths. Choices
that differ from those of env=openenv go into the command. An environment that is itself behind
another `siirl serve` is known by the name in its spec. Left out: keys given to `siirl serve`,
because they belong to the environment, and multi-turn settings of a custom text environment,
because no file describes them.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from envs.base import EnvSpec
from siirl.files.paths import config_dir
from siirl.files.yaml_files import read_plain
from siirl.params.build import as_text
from siirl.params.config_groups import options
from siirl.params.domains import is_text
from siirl.params.env_args import EnvArguments
from siirl.params.key_names import MODEL_PATH

CLIENT = "openenv"
OWN = "custom"  # file of environments `module:Class`
SHAPING = ("image_size", "camera")  # keys that decide whether shipped weights of robots fit
PLAIN_CHARACTERS = frozenset("-_./:+%@")  # of a value without quotes, besides letters and digits


def client_command(
    env: EnvArguments, spec: EnvSpec, *, url: str, token_file: str, sessions: int
) -> str:
    """The line that trains on the served environment.

    Args:
        env: The environment at the server.
        spec: Its spec.
        url: Address of the server.
        token_file: File with the token.
        sessions: Number of clients that the server accepts at once.
    """
    words = [
        f"env={CLIENT}",
        f"env.url={url}",
        f"env.kwargs.token_file={_quoted(token_file)}",
        f"env.envs_per_server={sessions}",
        *_choices(env, spec),
    ]
    return shlex.join(["siirl", "train", "pipeline=grpo", *words])


def _choices(env: EnvArguments, spec: EnvSpec) -> Iterator[str]:
    """Choices of the environment's own file that differ from those of env=openenv."""
    name = _own_file(env, spec)
    if name == OWN and is_text(spec):
        return
    served, client = _file("env", name), _file("env", CLIENT)
    keys = dict(_leaves("", served))
    for group, chosen in _groups(served).items():
        if group == "model" and "env" in _file(group, chosen):  # arguments that the server has
            keys |= dict(_leaves("", _file(group, chosen)))
        elif chosen != _groups(client)[group]:
            yield f"{group}={chosen}"
    reward = served.get("reward", {"name": "success"})  # of pipeline=grpo
    if not spec.reports_success:
        reward = {"name": "return"}
    if reward != client["reward"]:
        yield f"reward={reward['name']}"
    if any(getattr(env, key) != served["env"][key] for key in SHAPING):
        keys.pop(MODEL_PATH, None)
    for key, value in keys.items():
        if value is not None:
            yield f"{key}={as_text(value)}"


def _own_file(env: EnvArguments, spec: EnvSpec) -> str:
    """Name of the environment's file; a preset of env=gymnasium is known by its id."""
    for name in options()["env"]:
        keys = _file("env", name)["env"]
        if keys.get("id") and (keys["name"], keys["id"]) == (env.name, env.id):
            return name
    named = spec.name if env.name == CLIENT else env.name
    return named if named in options()["env"] else OWN


def _file(group: str, option: str) -> dict[str, Any]:
    content: dict[str, Any] = read_plain(config_dir() / group / f"{option}.yaml")
    return content


def _groups(file: Mapping[str, Any]) -> dict[str, str]:
    """The model, rollout and trainer that a file of an environment chooses."""
    chosen = [entry for entry in file["defaults"] if isinstance(entry, Mapping)]
    return {group.strip("/"): name for entry in chosen for group, name in entry.items()}


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Keys of the file with their values, without the groups that `_choices` handles itself."""
    if not isinstance(value, Mapping):
        yield place, value
        return
    for name, part in value.items():
        if place or name not in ("defaults", "env", "reward"):
            yield from _leaves(f"{place}.{name}" if place else name, part)


def _quoted(path: str) -> str:
    """`path` as the value of a key."""
    if all(sign in PLAIN_CHARACTERS or (sign.isascii() and sign.isalnum()) for sign in path):
        return path
    inner = path.replace("\\'", "\\\\'").replace("'", "\\'")
    return f"'{inner}'"
