"""Rewards of text: parts are summed, functions run in killable processes, failures are dropped."""

import dataclasses
import textwrap
from decimal import Decimal

import numpy as np
import pytest
import torch

from siirl.engine.reward_manager import (
    EpisodeOutcomes,
    RewardManager,
    make_reward_manager,
    make_text_reward_manager,
)
from siirl.engine.reward_manager.text_rewards import text_columns
from siirl.engine.reward_worker import checked, judged
from siirl.errors import ConfigError, UnknownNameError
from siirl.params import CustomRewardArguments, RewardArguments, SiiRLArguments
from siirl.params.algorithm_args import OverlongArguments
from siirl.params.reward_args import needs_texts, reward_parts

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
        made.append(make_text_reward_manager(config))
        return made[-1]

    yield manager
    for each in made:
        each.close()


def outcomes(
    *responses: str, truths=None, sources=None, success=None, lengths=None, total=None, **columns
) -> EpisodeOutcomes:
    count = len(responses)
    texts = {
        "response_text": list(responses),
        "ground_truth": [f'"{truth}"' for truth in (truths or [""] * count)],
        "data_source": list(sources or ["sums"] * count),
        "extra_info": ["{}"] * count,
        **columns,
    }
    return EpisodeOutcomes(
        uid_B=[f"u{i}" for i in range(count)],
        task_name_B=["sums"] * count,
        index_B=np.arange(count),
        complete_B=np.array(success or [False] * count, bool),
        env_return_B=np.array([0.25] * count, np.float32),
        video_embedding_BD=None,
        oracle_distance_B=None,
        texts_B=texts,
        response_length_B=None if lengths is None else np.array(lengths),
        total=count if total is None else total,
    )


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
        1: f"{name}: the environment cannot grade this row, so there is no verdict to reward"
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
    "nan": "moody: it returned nan, which is not a score",
    "inf": "moody: it returned inf, which is not a score",
    "text": "moody: it returned str, and a score is a number",
    "none": "moody: it returned NoneType, and a score is a number",
    "list": "moody: it returned list, and a score is a number",
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
    manager = make_text_reward_manager(config)
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
    assert scores.failed[0].endswith("no such grade")
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
                (0, 1), "many: TypeError: it returned float, and 2 samples need a list of 2 scores"
            ),
        ),
        (
            ("a", "nan"),
            {1: "many: it returned nan, which is not a score: finite, and at most 1e+15 in size"},
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
            r"it is called with \(data_source, solution_str, ground_truth, extra_info\), which its "
            r"signature",
        ),
        (
            {"name": "length", "batched": True},
            r"it is called with \(data_sources, solution_strs, ground_truths, extra_infos\)",
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


# Without functions


def text_config(**options) -> SiiRLArguments:
    return SiiRLArguments(**{"reward": RewardArguments(), **options})


@pytest.mark.parametrize(("name", "expected"), [("success", [1.0, 0.0]), ("return", [0.25, 0.25])])
def test_the_environments_own_reward_needs_no_texts_and_no_process(name, expected):
    manager = make_text_reward_manager(text_config(reward=RewardArguments(name=name)))
    step = outcomes("a", "b", success=[True, False])
    step.texts_B.clear()
    assert manager.score(step).reward_B.tolist() == expected
    assert not needs_texts(reward_parts(RewardArguments(name=name), CustomRewardArguments()))


def test_no_episodes_give_no_rewards():
    assert make_text_reward_manager(text_config()).score(outcomes()).reward_B.tolist() == []


def test_text_managers_score_their_own_rank_and_trajectory_rewards_all():
    assert make_text_reward_manager(text_config()).looks_at_all_ranks is False
    assert (
        make_reward_manager(RewardArguments(), demonstrations={}, tasks=("t",)).looks_at_all_ranks
        is True
    )


def test_both_kinds_of_manager_keep_the_protocol():
    for manager in (
        make_text_reward_manager(text_config()),
        make_reward_manager(RewardArguments(), demonstrations={}, tasks=("t",)),
    ):
        assert isinstance(manager, RewardManager)


# DAPO's penalty: none up to 80 of 100 tokens, half at 90, all of it at 100


def dapo_config(
    *, penalty: float, buffer: int | None = None, manager: str = "dapo"
) -> SiiRLArguments:
    config = SiiRLArguments(reward=RewardArguments(name="return", manager=manager))
    config.data.max_response_length = 100
    config.algorithm.overlong = OverlongArguments(penalty=penalty, buffer=buffer)
    return config


def test_dapo_subtracts_a_penalty_for_long_responses_outside_the_score():
    scores = make_text_reward_manager(dapo_config(penalty=1.0)).score(
        outcomes("a", "b", "c", lengths=[80, 90, 100])
    )
    assert scores.penalty_B.tolist() == [0.0, -0.5, -1.0]
    assert scores.reward_B.tolist() == [0.25, 0.25, 0.25]


def test_the_penalty_grows_linearly_from_its_start():
    scores = make_text_reward_manager(dapo_config(penalty=2.0, buffer=50)).score(
        outcomes("a", "b", lengths=[60, 75])
    )
    assert scores.penalty_B.tolist() == pytest.approx([-0.4, -1.0])


def test_the_penalty_belongs_to_the_algorithm_and_not_to_how_functions_run():
    scores = make_text_reward_manager(dapo_config(penalty=1.0, manager="naive")).score(
        outcomes("a", lengths=[100])
    )
    assert scores.penalty_B.tolist() == [-1.0]


def test_dapo_without_a_penalty_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"algorithm.overlong.penalty=0 disables it: set it \(pipeline=dapo sets 1\)",
    ):
        make_text_reward_manager(dapo_config(penalty=0.0))


def test_a_penalty_that_grows_over_more_than_the_response_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"algorithm.overlong.buffer=101 is more than data.max_response_length=100",
    ):
        make_text_reward_manager(dapo_config(penalty=1.0, buffer=101))


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


# Checks in the worker process


class Stubborn(float):
    """A user's number that cannot be converted."""

    def __float__(self) -> float:
        raise KeyError("not now")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        *((True, 1.0), (np.True_, 1.0), (3, 3.0), (np.float32(0.5), 0.5), (Decimal("0.5"), 0.5)),
        *((torch.tensor(2), 2.0), (np.array(2.0), 2.0), ({"score": np.int64(2)}, 2.0)),
    ],
)
def test_every_kind_of_real_number_is_a_score(result, expected):
    assert checked(result) == {"score": expected}


def test_a_further_part_that_is_not_finite_is_left_out_of_the_logs():
    assert judged({"score": 1.0, "margin": float("nan")}) == {"score": 1.0}


@pytest.mark.parametrize(
    "part",
    [None, "eighteen", np.str_("1"), [1.0], np.ones(2), torch.ones(2), 1j, 10**400, Stubborn(1.0)],
    ids=lambda part: type(part).__name__,
)
def test_no_value_of_a_further_part_makes_the_score_fail(part):
    assert judged({"score": 1.0, "part": part, "share": torch.tensor(0.5)}) == {
        "score": 1.0,
        "share": 0.5,
    }


@pytest.mark.parametrize(
    "score",
    [
        *(None, "1", [1.0], 1j, torch.ones(2), 10**400, Stubborn(1.0)),
        *(np.complex64(1), np.bytes_(b"1"), Decimal("sNaN")),
    ],
)
def test_what_is_no_number_is_no_score(score):
    assert "it returned" in judged({"score": score})["failed"]


def test_a_score_whose_square_exceeds_float32_is_no_score():
    assert "which is not a score" in judged(1e300)["failed"]
    assert judged(-1e15) == {"score": -1e15}


def test_a_score_below_the_range_of_floats_is_described_with_its_sign():
    assert judged(-(10**400)) == {
        "failed": "it returned -inf, which is not a score: finite, and at most 1e+15 in size"
    }


def test_a_user_class_that_is_not_a_reward_manager_is_refused():
    with pytest.raises(
        ConfigError, match="made a dict, which lacks ranks_failures, looks_at_all_ranks, score"
    ):
        make_reward_manager(
            RewardArguments(name="halving_reward:no_manager"), demonstrations={}, tasks=("t",)
        )
