"""The source of grades follows from the configuration: ungraded rows are used
only if nothing depends on a grade.
"""

import pytest

from envs.registry import env_spec
from siirl.errors import REFUSALS
from siirl.params.parser import parse_config
from siirl.preflight.early_checks import check_early
from siirl.preflight.ungraded_rows import ask_ungraded_rows, grade_of_every_row, rate_by_grade

FILES = "data.train_files=[rows.parquet]"
OWN = "custom_reward_function.name=math:sqrt"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([], "reward.name=success"),
        (["reward.name=return"], "reward.name=return"),
        (["reward.name=model"], None),
        ([OWN], None),
        (["custom_reward_function.name=success"], "custom_reward_function.name=success"),
        (
            ["reward.functions=[{name: 'math:sqrt'}, {name: success}]"],
            "reward.functions[1].name=success",
        ),
        (["reward.functions=[{name: 'math:sqrt'}, {name: success, data_sources: [sums]}]"], None),
    ],
)
def test_a_reward_that_needs_the_grade_of_every_row_is_named_by_its_key(words, key):
    assert (
        grade_of_every_row(
            parse_config(["env=math", "pipeline=grpo", *words]).reward,
            parse_config(["env=math", "pipeline=grpo", *words]).custom_reward_function,
        )
        == key
    )


@pytest.mark.parametrize(
    ("words", "kwargs"),
    [
        (["env=math", FILES, OWN], {"ungraded": True}),
        (["env=tools", FILES, "reward.name=model"], {"ungraded": True}),
        (
            ["env=math", "env.kwargs={files: [rows.parquet]}", OWN],
            {"files": ["rows.parquet"], "ungraded": True},
        ),
        (["env=math", FILES, OWN, "env.kwargs={ungraded: false}"], {"ungraded": False}),
        (["env=math", FILES], {}),
        (["env=math", OWN], {}),
        (["env=sandbox", FILES, OWN], {}),
    ],
    ids=[
        "own function",
        "reward model",
        "files of the environment",
        "told not to",
        "by the grade",
        "made-up questions",
        "no such argument",
    ],
)
def test_ungraded_rows_are_used_where_files_and_reward_are_the_users_own(words, kwargs):
    config = parse_config(["pipeline=grpo", *words])
    given = {
        name: value for name, value in config.env.kwargs.items() if name in ("files", "ungraded")
    }
    ask_ungraded_rows(config)
    assert {
        name: value for name, value in config.env.kwargs.items() if name in ("files", "ungraded")
    } == kwargs
    assert given == {
        name: value for name, value in kwargs.items() if name == "files" or value is False
    }


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["env=math", FILES, "reward.name=model"], "model"),
        (
            ["env=math", "env.kwargs={ungraded: true}", "reward.name=model"],
            "model",
        ),  # as a run's own configuration says it
        (["env=math", "reward.name=model"], "return"),
        (["env=math", FILES], "return"),
        (["env=metaworld", "reward.name=srpo"], "return"),
    ],
    ids=["files", "a run's configuration", "made-up questions", "graded rows", "robots"],
)
def test_an_evaluation_uses_a_reward_only_where_rows_may_be_ungraded(words, name):
    config = parse_config(["pipeline=grpo", *words])
    rate_by_grade(config)
    assert config.reward.name == name


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["pipeline=grpo", "env.kwargs={ungraded: true}"],
            "env.kwargs.ungraded=true uses rows that the environment cannot grade, but "
            "reward.name=success",
        ),
        (
            [FILES, OWN, "pipeline=dapo", "algorithm.filter.metric=success"],
            "but algorithm.filter.metric=success compares its grades",
        ),
        (
            [FILES, OWN, "pipeline=grpo", "algorithm.filter.success_high=0.9"],
            "but algorithm.filter.success_low=0.0, success_high=0.9 need its grades",
        ),
    ],
)
def test_a_setting_that_needs_a_grade_is_refused_where_rows_may_be_ungraded(words, told):
    with pytest.raises(REFUSALS) as refused:
        check_early(parse_config(["env=math", *words]))
    assert told in str(refused.value)


def test_the_environment_declares_that_its_rows_may_be_ungraded():
    assert env_spec("math", ungraded=True).leaves_ungraded
    assert not env_spec("math").leaves_ungraded
