"""A user's group: a dataclass named by `module:name` becomes an attribute of the
configuration.
"""

import pickle
from pathlib import Path

import pytest

from siirl.errors import ConfigError
from siirl.params.help import help_text
from siirl.params.parser import parse, parse_config, to_yaml

# As in the architecture guide, section 10.3, step 3.
GUIDE = '''
from dataclasses import dataclass, field
from typing import Dict, Any

@dataclass
class MyCustomArguments:
    """Custom arguments for new feature."""

    enable_feature: bool = field(
        default=False,
        metadata={"help": "Enable the custom feature"}
    )
    feature_threshold: float = field(
        default=0.5,
        metadata={"help": "Threshold for the custom feature"}
    )
    feature_config: Dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "Additional configuration for the feature"}
    )

@dataclass
class Incomplete:
    size: int

NotADataclass = 3
'''
REGISTER = "+user_groups.my_custom=guide_groups:MyCustomArguments"


@pytest.fixture(autouse=True)
def _guide_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guide_groups.py").write_text(GUIDE)
    monkeypatch.syspath_prepend(tmp_path)


def test_keys_of_a_user_group_are_set_like_all_others() -> None:
    config = parse_config(
        [REGISTER, "my_custom.enable_feature=true", "my_custom.feature_config={key1: value1}"]
    )
    own = config.my_custom  # type: ignore[attr-defined]
    assert (own.enable_feature, own.feature_threshold, own.feature_config) == (
        True,
        0.5,
        {"key1": "value1"},
    )


def test_a_user_group_may_be_set_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "user_groups:\n  my_custom: guide_groups:MyCustomArguments\nmy_custom:\n  "
        "feature_threshold: 0.7\n"
    )
    assert parse_config(config_file=file).my_custom.feature_threshold == 0.7  # type: ignore[attr-defined]


def test_a_user_group_is_printed_and_read_back(tmp_path: Path) -> None:
    config = parse_config([REGISTER, "my_custom.feature_threshold=0.25"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert parse_config(config_file=file).my_custom == config.my_custom  # type: ignore[attr-defined]


def test_a_user_group_is_pickled_with_the_configuration() -> None:
    config = pickle.loads(pickle.dumps(parse_config([REGISTER, "my_custom.enable_feature=true"])))
    assert config.my_custom.enable_feature is True


def test_the_help_of_the_environment_is_shown() -> None:
    text = help_text(usage="", user_groups=parse([REGISTER]).user_groups)
    assert "my_custom.feature_threshold" in text
    assert "Threshold for the custom feature" in text
    assert "Custom arguments for new feature." in text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([REGISTER, "my_custom.enable_featur=true"], "Did you mean 'my_custom.enable_feature'?"),
        (
            [REGISTER, "my_custom.feature_threshold=high"],
            "my_custom.feature_threshold=high (command line) must be a number",
        ),
        (["+user_groups.my_custom=guide_groups:Missing"], "module 'guide_groups' has no 'Missing'"),
        (["+user_groups.my_custom=no_such_module:X"], "there is no module 'no_such_module'"),
        (["+user_groups.my_custom=guide_groups"], "write module:name"),
        (["+user_groups.my_custom=guide_groups:NotADataclass"], "is not a dataclass"),
        (["+user_groups.my_custom=guide_groups:Incomplete"], "give size a default"),
        (
            ["+user_groups.trainer=guide_groups:MyCustomArguments"],
            "'trainer' is a built-in group",
        ),
        (["my_custom.enable_feature=true"], "Unknown key 'my_custom.enable_feature'"),
    ],
)
def test_mistakes_are_refused_with_the_remedy(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(overrides)
    assert message in str(caught.value)
