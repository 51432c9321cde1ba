"""Any value at any key, alone or together: a valid configuration, or a refusal with a
message; never another exception.
"""

import copy
import datetime
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.base import EnvSpec
from envs.registry import env_spec
from envs.text import text_spec
from siirl.errors import CheckpointError, ConfigError, MissingAssetError, SiirlError, refuse
from siirl.params.build import build
from siirl.params.env_spec import describe_env
from siirl.params.parser import known_keys, parse, to_tree
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.config_checks import config_problems, warnings_of
from siirl.preflight.environment_checks import environment_problems
from siirl.preflight.machine import process_problems
from siirl.preflight.needed_files import file_problems
from siirl.preflight.unread import unread_in_domain, unread_problems

KEYS = [place for place, key in known_keys({}).items() if not key.metadata["derived"]]
VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 10**30, -(10**30), 0.5, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *(
        "",
        " ",
        "x",
        "a:b",
        ":",
        "a.b:c",
        "\x00",
        "long" * 2_000,
        "../..",
        "/dev/null",
        "${nowhere}",
        "${",
        "???",
        "0",
        "null",
    ),
    *(
        [],
        [None],
        [[]],
        [""],
        [1, 1],
        ["x", 1.5],
        [{}],
        {},
        {"a": 1},
        {"a": {"b": [None]}},
        {1: 2},
        {"name": "x"},
        [{"name": 3}],
    ),
    *(datetime.date(2026, 11, 23), b"\xff"),
]
TEXT = text_spec(name="math", tasks=["sums-2", "sums-3"], max_turns=1, max_action_characters=100)
ROBOT = env_spec("gymnasium", id="CartPole-v1")
JOBS = {
    "text": (["env=math", "pipeline=grpo"], TEXT),
    "robot": (["env=gymnasium", "env.id=CartPole-v1", "pipeline=grpo"], ROBOT),
}


BASES = {job: to_tree(parse(words).config) for job, (words, _) in JOBS.items()}


def with_value(job: str, place: str, value: Any) -> SiiRLArguments:
    """A job with another value at one key."""
    tree = copy.deepcopy(BASES[job])
    *groups, name = place.split(".")
    functools.reduce(lambda holder, group: holder[group], groups, tree)[name] = value
    problems: list[SiirlError] = []
    config = build(SiiRLArguments, tree, problems=problems)
    refuse(problems)
    return config


def judge(read: Callable[[], SiiRLArguments], spec: EnvSpec) -> None:
    """Read a configuration and go through all checks that need no graph; any exception but a
    refusal passes.
    """
    try:
        config = read()
        refuse(
            [
                *config_problems(config),
                *file_problems(config),
                *unread_problems(config),
                *process_problems(config, cores=2),
            ]
        )
        refuse([*environment_problems(config, spec), *unread_in_domain(config, text=spec is TEXT)])
        list(warnings_of(config, spec))
    except (ConfigError, MissingAssetError, CheckpointError) as error:
        assert str(error)


@pytest.mark.parametrize("place", KEYS)
def test_any_value_of_a_key_is_accepted_or_refused(place: str) -> None:
    """A third of the values at each key, another one at each job; the property below draws from all
    of them.
    """
    for number in range(KEYS.index(place) % 3, len(VALUES), 3):
        job = list(JOBS)[number % 2]
        judge(lambda job=job, number=number: with_value(job, place, VALUES[number]), JOBS[job][1])  # type: ignore[misc]


@settings(max_examples=25, deadline=None)
@given(
    values=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), min_size=2, max_size=6),
    job=st.sampled_from(list(JOBS)),
)
def test_any_values_together_are_accepted_or_refused(
    values: dict[str, Any], job: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("generated") / "config.yaml"
    file.write_text(yaml.dump(values))
    words, spec = JOBS[job]
    judge(lambda: parse(words, config_file=file).config, spec)


@settings(max_examples=40, deadline=None)
@given(
    text=st.text(alphabet="abc.=:[]{}'\"\\,+~${} 01\n\x00@/-", max_size=12),
    key=st.sampled_from(KEYS),
)
def test_any_word_of_the_command_line_is_accepted_or_refused(text: str, key: str) -> None:
    for word in (text, f"{key}={text}"):
        judge(lambda word=word: parse([word]).config, ROBOT)  # type: ignore[misc]


ENVIRONMENTS = ["math", "tools", "sandbox", "gymnasium"]
ARGUMENTS = (
    "tasks",
    "image_size",
    "camera",
    "max_episode_steps",
    "num_agents",
    "num_graders",
    "wording",
    "split",
    "heldout_share",
    "limits",
)


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_any_argument_of_an_environment_is_accepted_or_refused(name: str, argument: str) -> None:
    for value in VALUES:
        config = SiiRLArguments()
        config.env.name, config.env.id = name, "CartPole-v1" if name == "gymnasium" else None
        config.env.isolation = "none" if name == "sandbox" else None
        config.env.kwargs = {argument: value}
        try:
            describe_env(config)
        except (ConfigError, MissingAssetError) as error:
            assert name in str(error)
