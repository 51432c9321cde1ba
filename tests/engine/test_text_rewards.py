"""Rewards of text: parts are summed, functions run in killable processes, failures are dropped."""

import dataclasses
import re
import textwrap

import numpy as np
import pytest

from siirl.engine.reward_manager.text_rewards import text_columns
from siirl.errors import ConfigError, UnknownNameError
from siirl.params import CustomRewardArguments, RewardArguments, SiiRLArguments
from siirl.params.reward_args import reward_parts
from tests.engine.text_managers import text_manager
from tests.engine.text_outcomes import outcomes

FUNCTIONS = '''
    """Every kind of reward function, good and bad."""
    import asyncio, os, time

    def length(data_source, solution_str, ground_truth, extra_info):
        return len(solution_str)

    def right(data_source, solution_str, ground_truth, extra_info):
        right = solution_str == ground_truth
        bonus = extra_info.get("bonus", 0)
        score = 2.0 if right else 0.0
        return {"score": score, "right": right, "bonus": bonus, "answer": solution_str}

    async def later(solution_str, **rest):
        await asyncio.sleep(0)
        return 0.5

    def moody(data_source, solution_str, ground_truth, extra_info):
        if solution_str == "raise":
            raise RuntimeError("no such grade")
        if solution_str == "sleep":
            time.sleep(3600)
        if solution_str == "exit":
            os._exit(3)
        bad = {"nan": float("nan"), "inf": float("inf"), "text": "1.0", "none": None}
        bad |= {"list": [1.0], "empty": {}}
        return bad.get(solution_str, 1.0)

    def many(data_sources, solution_strs, ground_truths, extra_infos):
        if "short" in solution_strs:
            return [1.0]
        if "single" in solution_strs:
            return 1.0
        return [float("nan") if text == "nan" else float(len(text)) for text in solution_strs]

    def takes_other_things(batch):
        return 1.0

    not_callable = 3
'''


@pytest.fixture(scope="module")
def functions(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("rewards") / "my_rewards.py"
    file.write_text(textwrap.dedent(FUNCTIONS))
    return str(file)


@pytest.fixture
def make(functions):
    """Makes managers, and closes them."""
    made = []

    def manager(*parts, **options):
        entries = tuple(
            {"path": functions, **part} if "path" not in part and ":" not in part["name"] else part
            for part in parts
        )
        entries = tuple({k: v for k, v in part.items() if v is not None} for part in entries)
        config = SiiRLArguments(reward=RewardArguments(functions=entries, **options))
        made.append(text_manager(config))
        return made[-1]

    yield manager
    for each in made:
        each.close()


def test_a_function_is_called_with_the_texts_of_its_sample(make):
    scores = make({"name": "right"}).score(outcomes("46", "47", truths=["46", "46"]))
    assert scores.reward_B.tolist() == [2.0, 0.0]
    assert scores.failed == {}


def test_further_numbers_of_a_dict_are_logged_apart_and_texts_are_not(make):
    scores = make({"name": "right"}).score(
        outcomes("46", "47", truths=["46", "46"], extra_info=['{"bonus": 3}', "{}"])
    )
    assert {name: part.tolist() for name, part in scores.parts.items()} == {
        "right": [2.0, 0.0],
        "right.right": [1.0, 0.0],
        "right.bonus": [3.0, 0.0],
    }


def test_parts_are_weighted_added_up_and_logged_without_their_weight(make):
    parts = (
        {"name": "length", "weight": 0.1},
        {"name": "success", "path": None},
        {"name": "later", "weight": -2},
    )
    scores = make(*parts).score(outcomes("four", success=[True]))
    assert scores.reward_B.tolist() == pytest.approx([0.1 * 4 + 1.0 - 2 * 0.5])
    assert {name: part.tolist() for name, part in scores.parts.items()} == {
        "length": [4.0],
        "success": [1.0],
        "later": [0.5],
    }


@pytest.mark.parametrize("name", ["success", "return"])
def test_an_ungraded_episode_has_no_reward(make, name):
    shown = dataclasses.replace(
        outcomes("four", "five", success=[True, False]), graded_B=np.array([True, False])
    )
    scores = make({"name": name, "path": None}).score(shown)
    assert scores.failed == {
        1: f"{name}: the environment cannot grade this row, so it has no verdict"
    }
    assert make({"name": "length"}).score(shown).reward_B.tolist() == [4.0, 4.0]


def test_a_part_may_be_for_some_data_sources_alone(make):
    manager = make(
        {"name": "length", "data_sources": ["a"]},
        {"name": "return", "path": None, "data_sources": "b"},
    )
    scores = manager.score(outcomes("four", "four", "four", sources=["a", "b", "c"]))
    assert scores.reward_B[:2].tolist() == [4.0, 0.25]
    assert scores.failed == {2: "no part of the reward covers the data source 'c'"}
    assert np.isnan(scores.parts["length"][1])


BAD = {
    "raise": "moody: RuntimeError: no such grade",
    "nan": "moody: it returned nan, but a score must be finite",
    "inf": "moody: it returned inf, but a score must be finite",
    "text": "moody: it returned str, but a score is a number",
    "none": "moody: it returned NoneType, but a score is a number",
    "list": "moody: it returned list, but a score is a number",
    "empty": "moody: it returned a dict without 'score'",
    "exit": "moody: it ended with status 3",
    "sleep": "moody: no answer within 5 s",
}


@pytest.fixture(scope="module")
def moody_scores(functions):
    config = SiiRLArguments(
        custom_reward_function=CustomRewardArguments(path=functions, name="moody"),
        reward=RewardArguments(
            manager="parallel", num_workers=2, timeout_s=5.0, max_failed_share=1.0
        ),
    )
    manager = text_manager(config)
    yield manager.score(outcomes("good", *BAD, "good"))
    manager.close()


@pytest.mark.parametrize(("place", "response"), list(enumerate(BAD, start=1)))
def test_a_function_without_a_score_fails_its_own_sample(moody_scores, place, response):
    assert moody_scores.failed[place].startswith(BAD[response])


def test_the_samples_beside_it_are_scored(moody_scores):
    assert set(moody_scores.failed) == set(range(1, len(BAD) + 1))
    assert moody_scores.reward_B[[0, -1]].tolist() == [1.0, 1.0]


def test_after_too_many_failures_no_further_sample_is_scored(make):
    manager = make({"name": "moody"}, max_failed_share=0.25)
    scores = manager.score(outcomes("raise", "raise", "good", "good", total=4))
    assert re.search(r"no such grade \(.*\.py, line \d+\)$", scores.failed[0])
    assert [scores.failed[row] for row in (2, 3)] == ["moody: skipped after too many failures"] * 2


def test_the_failure_bound_counts_samples_of_all_ranks(make):
    manager = make({"name": "moody"}, max_failed_share=0.25)
    scores = manager.score(outcomes("raise", "raise", "good", "good", total=8))
    assert set(scores.failed) == {0, 1}


def test_a_batched_function_gets_lists(make):
    scores = make({"name": "many", "batched": True}).score(outcomes("a", "bb", "ccc"))
    assert scores.reward_B.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("responses", "failed"),
    [
        (
            ("a", "short"),
            dict.fromkeys((0, 1), "many: ValueError: it returned 1 scores for 2 samples"),
        ),
        (
            ("a", "single"),
            dict.fromkeys(
                (0, 1), "many: TypeError: it returned float, but 2 samples need a list of 2 scores"
            ),
        ),
        (
            ("a", "nan"),
            {1: "many: it returned nan, but a score must be finite and at most 1e+15 in size"},
        ),
    ],
)
def test_a_list_of_the_wrong_length_fails_all_samples_and_a_bad_entry_fails_one(
    make, responses, failed
):
    assert make({"name": "many", "batched": True}).score(outcomes(*responses)).failed == failed


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"name": "lenght"},
            r"The reward function lenght of .*my_rewards.py cannot be used: .* has no 'lenght'",
        ),
        ({"name": "not_callable"}, r"not_callable is of type int and cannot be called"),
        (
            {"name": "takes_other_things"},
            r"its signature does not accept the arguments \(data_source, solution_str, "
            r"ground_truth, extra_info\)",
        ),
        (
            {"name": "length", "batched": True},
            r"its signature does not accept the arguments \(data_sources, solution_strs, ground_truths, extra_infos\)",
        ),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_before_the_first_sample(make, part, message):
    with pytest.raises(ConfigError, match=message):
        make(part)


def test_a_file_that_raises_on_import_is_refused_with_its_line(make, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("def score(**kwargs):\n    return 1\nimport no_such_package_here\n")
    with pytest.raises(
        ConfigError,
        match=r"importing it raised ModuleNotFoundError: "
        r"No module named 'no_such_package_here' .*line 3",
    ):
        make({"name": "score", "path": str(broken)})


def test_a_file_may_import_its_neighbours(make, tmp_path):
    (tmp_path / "neighbour_of_rewards.py").write_text("VALUE = 7\n")
    own = tmp_path / "own.py"
    own.write_text(
        "from neighbour_of_rewards import VALUE\ndef score(**kwargs):\n    return VALUE\n"
    )
    assert make({"name": "score", "path": str(own)}).score(outcomes("x")).reward_B.tolist() == [7.0]


def test_a_function_of_a_module_is_named_as_module_and_name(make):
    manager = make({"name": "halving_reward:half"})
    assert manager.score(outcomes("x")).reward_B.tolist() == [0.5]


# The configuration


def parts_of(*functions, name="success", **custom):
    return reward_parts(
        RewardArguments(name=name, functions=functions), CustomRewardArguments(**custom)
    )


def test_custom_reward_function_is_a_list_of_one_and_takes_the_place_of_the_environments_reward(
    functions,
):
    (part,) = reward_parts(
        RewardArguments(name="return"), CustomRewardArguments(path=functions, name="length")
    )
    assert (part.name, part.path, part.weight) == ("length", functions, 1.0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"name": "halving_reward:half", "wieght": 2},
            "Unknown key in reward.functions.0. 'wieght'. Did you mean 'weight'",
        ),
        ({"weight": 2}, "reward.functions.0..name=None must name a function"),
        (
            {"name": "return", "weight": "much"},
            "reward.functions.0..weight='much' must be a finite number",
        ),
        (
            {"name": "return", "weight": float("nan")},
            "reward.functions.0..weight=nan must be a finite number",
        ),
        (
            {"name": "score", "path": "/no/such/file.py"},
            "reward.functions.0..path=/no/such/file.py: there is no such file",
        ),
        (
            {"name": "no_such_module_of_rewards:score"},
            "there is no module 'no_such_module_of_rewards'",
        ),
        (
            {"name": "suces"},
            "Unknown reward of text .reward.functions.0..name. 'suces'. Did you mean 'success'",
        ),
    ],
)
def test_an_invalid_part_is_refused(entry, message):
    with pytest.raises(ConfigError, match=message):
        parts_of(entry)


def test_a_video_reward_is_refused_for_text():
    with pytest.raises(UnknownNameError, match=r"Unknown reward of text .reward.name. 'srpo'"):
        parts_of(name="srpo")


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="Two parts of the reward are named 'return'"):
        parts_of({"name": "return"}, {"name": "return", "weight": 2})


def test_a_file_without_a_function_is_refused(functions):
    with pytest.raises(ConfigError, match=r"custom_reward_function.name to a function in it"):
        reward_parts(RewardArguments(), CustomRewardArguments(path=functions))


def test_the_rollout_gets_the_names_of_the_texts_to_provide():
    assert text_columns(parts_of({"name": "return", "data_sources": ["a"]})) == ("data_source",)
    assert "response_text" in text_columns(parts_of({"name": "halving_reward:half"}))
