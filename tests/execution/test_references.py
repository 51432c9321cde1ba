"""Function names are resolved by import, and the message for a missing one lists
the existing ones.
"""

import pytest

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag import Node, NodeType
from siirl.execution.dag.function_names import resolve_function

MODULE = """
from siirl.execution.dag import NodeOutput

class Stages:
    @staticmethod
    def generate(*, batch, context):
        return NodeOutput(batch=batch)

    def bound(self, batch):
        return batch

def compute_custom_reward(batch, config, **kwargs):
    return NodeOutput(batch=batch)

def needs_more(batch, tokenizer):
    return batch

def by_position(batch, /):
    return batch

async def coroutine(batch):
    return batch

NUMBER = 7
"""


@pytest.fixture(autouse=True)
def user_modules(tmp_path, monkeypatch):
    """`user_package.rewards` with the functions above, and `user_package.broken`, which imports
    something missing.
    """
    package = tmp_path / "user_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "rewards.py").write_text(MODULE)
    (package / "broken.py").write_text("import a_library_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def checked(reference):
    node = Node(node_id="reward", node_type=NodeType.COMPUTE, executable_ref=reference)
    node.check()
    return node


@pytest.mark.parametrize(
    "reference",
    [
        "user_package.rewards:Stages.generate",
        "user_package.rewards:compute_custom_reward",
        "user_package.rewards.compute_custom_reward",
    ],
)
def test_all_spellings_are_accepted(reference):
    assert checked(reference).executable.__module__ == "user_package.rewards"


def test_callable_is_accepted():
    assert resolve_function(len, owner="x") is len


def test_unknown_function_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"Did you mean 'compute_custom_reward'\?") as caught:
        checked("user_package.rewards:compute_custom_rewards")
    assert "node 'reward'" in str(caught.value)


def test_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(
        UnknownNameError, match=r"'user_package.rewards.Stages'.*Known: bound, generate"
    ):
        checked("user_package.rewards:Stages.train")


def test_unknown_module_is_refused_with_its_neighbours():
    with pytest.raises(
        UnknownNameError, match=r"module in 'user_package'.*Did you mean 'rewards'\?"
    ):
        checked("user_package.reward:compute_custom_reward")


def test_unknown_package_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"no module 'package_that_nobody_has'.*PYTHONPATH"):
        checked("package_that_nobody_has.rewards:f")


def test_module_that_cannot_be_imported_names_the_missing_library():
    with pytest.raises(ConfigError, match="a_library_that_is_missing"):
        checked("user_package.broken:f")


@pytest.mark.parametrize(
    "reference", ["compute_reward", "", "user_package.rewards:", "user package:f"]
)
def test_name_without_module_is_refused(reference):
    with pytest.raises(ConfigError, match=r"Write 'module:Class.method'"):
        checked(reference)


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(ConfigError, match="is of type int and cannot be called"):
        checked("user_package.rewards:NUMBER")


def test_parameter_that_no_node_gets_is_refused_when_the_graph_is_built():
    with pytest.raises(
        ConfigError,
        match=r"asks for 'tokenizer', which no node gets.*Known: batch, config, context",
    ):
        checked("user_package.rewards:needs_more")


def test_unbound_method_is_refused():
    with pytest.raises(ConfigError, match=r"'self'.*staticmethod"):
        checked("user_package.rewards:Stages.bound")


def test_positional_parameter_is_refused():
    with pytest.raises(ConfigError, match="by position only"):
        checked("user_package.rewards:by_position")


def test_coroutine_is_refused():
    with pytest.raises(ConfigError, match="async def"):
        checked("user_package.rewards:coroutine")
