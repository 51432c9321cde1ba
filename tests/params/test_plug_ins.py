"""Keys that take plug-ins: refusals before torch is imported, and the user's modules."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from siirl.errors import ConfigError
from siirl.params.env_spec import describe_env
from siirl.params.parser import known_keys, parse_config
from siirl.params.plug_ins import import_user_modules
from siirl.preflight.config_checks import config_problems

PLUG_IN_KEYS = sorted(place for place, key in known_keys({}).items() if key.metadata["plug_in"])
JOB = ("pipeline=dapo", "env=math", "actor_rollout_ref.actor.use_kl_loss=true")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path for a user's modules, which are unloaded afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


def problems(*words: str) -> list[str]:
    return [str(problem) for problem in config_problems(parse_config([*JOB, *words]))]


@pytest.mark.parametrize("key", PLUG_IN_KEYS)
def test_a_reference_to_no_module_is_refused_with_the_key_and_the_remedy(key: str) -> None:
    sentence = (
        "there is no module 'no_such_module'. Install its package, or put its folder on PYTHONPATH."
    )
    assert f"{key}=no_such_module:thing: {sentence}" in problems(f"{key}=no_such_module:thing")


@pytest.mark.parametrize("key", PLUG_IN_KEYS)
def test_an_unknown_name_is_refused_at_once_with_the_known_ones(key: str) -> None:
    (message,) = [
        message
        for message in problems(f"{key}=nonsense")
        if message.startswith(f"Unknown {key} 'nonsense'.")
    ]
    assert "module:name" in message


@pytest.mark.parametrize("key", PLUG_IN_KEYS)
def test_a_name_that_a_user_module_may_register_is_checked_after_its_import(key: str) -> None:
    assert [
        message
        for message in problems(f"{key}=mine", "user_modules=[own_names]")
        if "Unknown" in message
    ] == []


def test_a_list_is_not_the_name_of_a_loss() -> None:
    with pytest.raises(ConfigError, match=r"actor_rollout_ref.actor.loss=\[\]"):
        parse_config(["actor_rollout_ref.actor.loss=[]"])


def test_the_help_says_that_plug_ins_are_taken() -> None:
    from siirl.params.help import help_text
    from siirl.params.registered_names import LOSSES

    text = " ".join(help_text(usage="", user_groups={}).split())
    assert f"{', '.join(LOSSES)}, a name that user_modules register, or module:name." in text


def test_user_modules_are_imported_in_their_order(own: Path) -> None:
    (own / "own_first.py").write_text("ORDER = ['first']\n")
    (own / "own_second.py").write_text("from own_first import ORDER\nORDER.append('second')\n")
    import_user_modules(["own_first", "own_second"])
    assert sys.modules["own_first"].ORDER == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "no_such_module",
            "",
            "there is no module 'no_such_module'. Install it, or put its folder on PYTHONPATH",
        ),
        ("own_lacking.module", "", "there is no module 'own_lacking'"),
        ("own_plain.module", "", "there is no module 'own_plain.module'"),
        (
            "my/file.py",
            "",
            "is not a module: write its dotted name, for example "
            "user_modules=[my_package.registrations]",
        ),
        ("own_broken", "1 / 0\n", "importing it raised ZeroDivisionError: division by zero"),
        (
            "own_importing",
            "import no_such_package\n",
            "importing it raised ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("own_syntax", "def (\n", "importing it raised SyntaxError"),
        ("own_script", "raise SystemExit(3)\n", "importing it raised SystemExit: 3"),
    ],
)
def test_a_user_module_that_cannot_be_imported_is_refused_with_the_reason(
    own: Path, name: str, text: str, sentence: str
) -> None:
    (own / f"{name if text else 'own_plain'}.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        import_user_modules([name])
    assert str(caught.value).startswith(f"user_modules={name}")
    assert sentence in str(caught.value)


def test_an_environment_that_a_user_module_registers_is_found(own: Path) -> None:
    (own / "own_maths.py").write_text(
        "from envs.math.math_env import MathEnv\n"
        "from envs.registry import register_env\n"
        "@register_env('own_maths')\n"
        "class OwnMaths(MathEnv):\n"
        "    pass\n"
    )
    config = parse_config(["env=math", "env.name=own_maths", "user_modules=[own_maths]"])
    assert describe_env(config).tasks == ("sums-2",)
