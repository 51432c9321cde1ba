"""MathEnv: a question, an answer from each agent, a grade; from generators, files and rows, in this
process and in servers.
"""

import asyncio
import re

import numpy as np
import pytest

from envs.math.grading import GradingFailed
from envs.math.math_env import MathEnv
from envs.prompt_files import write_prompts
from envs.prompt_rows import PromptRow
from envs.text import message
from siirl.env_server.pool import EnvPool
from siirl.errors import SimulationFailed

ROW = {
    "data_source": "mine",
    "prompt": [{"role": "user", "content": "What is one half?"}],
    "reward_model": {"style": "rule", "ground_truth": "\\frac{1}{2}"},
}


UNGRADABLE = ROW | {
    "reward_model": {"style": "rule", "ground_truth": "9^{9^{9^9}}"}
}  # not even against itself


def play(env, *texts, seed=0, options=None):
    """Reset, one step per text, close; all results."""

    async def episode():
        results = [await env.reset(seed=seed, options=options)]
        for text in texts:
            results.append(await env.step(text))
        await env.close()
        return results

    return asyncio.run(episode())


def solve(question):
    a, b = map(int, re.findall(r"\d+", question))
    return str(a + b)


def asked(result):
    return result[0]["messages"][-1]["content"]


def test_right_answer_gets_one_and_ends_the_episode():
    question = asked(play(MathEnv(), seed=7)[0])
    observation, reward, terminated, truncated, info = play(MathEnv(), solve(question), seed=7)[1]
    assert observation == {"messages": []}
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {
        "task": "sums-2",
        "success": True,
        "reward_parts": {"correct": 1.0},
        "verdict": "correct",
        "answer": solve(question),
    }


def test_wrong_answer_gets_nothing():
    assert play(MathEnv(), "0")[1][1:3] == (0.0, True)


def test_form_is_rewarded_apart_where_asked_for():
    env = MathEnv(wording="words", format_reward=0.25)
    *_, info = wrong = play(env, "#### 0")[1]
    assert wrong[1] == 0.25
    assert info["reward_parts"] == {"correct": 0.0, "format": 0.25}
    assert play(MathEnv(wording="words", format_reward=0.25), "0")[1][1] == 0.0


def test_several_agents_answer_the_same_question_and_are_graded_apart():
    env = MathEnv(num_agents=3)
    observations, _ = play(env, seed=2)[0]
    assert observations[0] == observations[1] == observations[2]
    right = solve(observations[0]["messages"][0]["content"])
    observations, rewards, terminated, _, info = play(env, [right, "0", right], seed=2)[1]
    assert observations == [{"messages": []}] * 3
    assert np.array_equal(rewards, [1.0, 0.0, 1.0])
    assert (terminated, info["success"]) == (True, False)
    assert [agent["verdict"] for agent in info["agents"]] == ["correct", "wrong", "correct"]


def test_answers_of_the_wrong_number_are_refused():
    with pytest.raises(ValueError, match="list of 2 texts, one per agent"):
        play(MathEnv(num_agents=2), ["1"])


def test_splits_have_no_question_in_common():
    questions = {
        split: {
            asked(play(MathEnv(tasks=["sums-1"]), seed=seed, options={"split": split})[0])
            for seed in range(200)
        }
        for split in ("train", "heldout")
    }
    assert len(questions["train"]) > 50
    assert len(questions["heldout"]) > 5
    assert not questions["train"] & questions["heldout"]


def test_a_given_row_is_asked_and_graded():
    (observation, info), step = play(MathEnv(), "so \\boxed{0.5}", options={"row": ROW})
    assert observation["messages"] == ROW["prompt"]
    assert info == {
        "task": "mine",
        "data_source": "mine",
        "ground_truth": "\\frac{1}{2}",
        "graded": True,
    }
    assert step[1] == 1.0


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({}, "column 'data_source' is missing"),
        (
            ROW | {"reward_model": {"style": "rule", "ground_truth": None}},
            "ground_truth must be text",
        ),
        (
            ROW | {"reward_model": {"style": "model", "ground_truth": "1"}},
            "'model' is not graded here",
        ),
        ("What is 1 + 1?", "must be a row with the prompt columns, got str"),
    ],
)
def test_row_that_is_none_is_refused(row, sentence):
    with pytest.raises(ValueError, match=sentence):
        play(MathEnv(), options={"row": row})


JUDGED = ROW | {"reward_model": {"style": "model", "ground_truth": None}}
NO_GRADE = {"success": None, "reward_parts": {}, "verdict": "not graded", "answer": None}


def test_ungradable_row_gets_no_verdict_if_the_reward_needs_none():
    env = MathEnv(ungraded=True)
    assert env.spec.leaves_ungraded
    (observation, info), step = play(env, "#### 1", options={"row": JUDGED})
    assert observation["messages"] == ROW["prompt"]
    assert (info["ground_truth"], info["graded"]) == (None, False)
    assert step[1:] == (0.0, True, False, {"task": "mine", **NO_GRADE})


def test_row_that_can_be_graded_is_graded_all_the_same():
    _, step = play(MathEnv(ungraded=True, format_reward=0.5), "\\boxed{0.5}", options={"row": ROW})
    assert (step[1], step[4]["success"], step[4]["verdict"]) == (1.5, True, "correct")


def test_ungraded_agents_have_no_joint_success():
    _, step = play(MathEnv(ungraded=True, num_agents=2), ["1", "2"], options={"row": JUDGED})
    assert step[1].tolist() == [0.0, 0.0]
    assert (step[4]["success"], step[4]["agents"]) == (None, [NO_GRADE, NO_GRADE])


def test_ungradable_rows_of_a_file_are_asked_if_the_reward_needs_no_grade(tmp_path):
    file = file_of(tmp_path / "rows.jsonl", count=1, style="model")
    assert play(MathEnv(files=file, heldout_share=0.0, ungraded=True), "1")[1][4]["success"] is None


def file_of(path, count=40, **changes):
    rows = [
        PromptRow(
            f"source {n % 2}",
            (message("user", f"What is {n} + 1?"),),
            str(n + 1),
            **{"style": "rule"} | changes,
        )
        for n in range(count)
    ]
    write_prompts(path, rows)
    return str(path)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_rows_of_a_file_are_asked_by_source_and_split(tmp_path, name):
    file = file_of(tmp_path / name)
    assert MathEnv(files=file).spec.tasks == ("source 0", "source 1")
    seen = {}
    for split in ("train", "heldout"):
        env = MathEnv(files=[file], tasks=["source 1"], heldout_share=0.3)
        seen[split] = {
            int(solve(asked(play(env, seed=seed, options={"split": split})[0]))) - 1
            for seed in range(150)
        }
    assert seen["train"] | seen["heldout"] == set(range(1, 40, 2))
    assert not seen["train"] & seen["heldout"]


def test_the_same_seed_asks_the_same_row(tmp_path):
    file = file_of(tmp_path / "rows.jsonl")
    first, second = (asked(play(MathEnv(files=file), seed=11)[0]) for _ in range(2))
    assert first == second


def test_file_that_is_written_anew_is_read_anew(tmp_path):
    file = file_of(tmp_path / "rows.jsonl", count=1)
    play(MathEnv(files=file, heldout_share=0.0))
    write_prompts(file, [PromptRow("other", (message("user", "Which?"),), "1")])
    assert asked(play(MathEnv(files=file, heldout_share=0.0))[0]) == "Which?"


def test_split_of_a_file_without_rows_is_reported(tmp_path):
    file = file_of(tmp_path / "rows.jsonl", count=2)
    with pytest.raises(
        ValueError,
        match=r"None of the 1 rows of 'source 0' is in the split heldout at heldout_share=0\.0",
    ):
        play(MathEnv(files=file, heldout_share=0.0), options={"split": "heldout"})


def test_ungradable_row_of_a_file_is_reported_with_its_place(tmp_path):
    file = file_of(tmp_path / "rows.jsonl", count=1, style="model")
    with pytest.raises(
        ValueError,
        match=r"rows\.jsonl, line 1: .*'model' is not graded here.*Correct or remove the row",
    ):
        play(MathEnv(files=file, heldout_share=0.0))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tasks": ["sum-2"]}, "Did you mean 'sums-n'"),
        ({"split": "test"}, "Unknown split 'test'. Known: train, heldout"),
        ({"wording": "long"}, "Unknown wording 'long'. Known: bare, words"),
        ({"heldout_share": 1.0}, "heldout_share must be at least 0 and below 1"),
        ({"num_agents": 0}, "num_agents must be a whole number of at least 1"),
        ({"num_graders": 0}, "num_workers must be positive"),
        ({"grading_cpu_s": 0}, "grading_cpu_s must be at least 0.001 s"),
    ],
)
def test_argument_that_cannot_work_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        MathEnv(**arguments)


def test_unknown_source_of_a_file_is_answered(tmp_path):
    with pytest.raises(
        ValueError, match="has the data_source 'gsm8k'; there are: source 0, source 1"
    ):
        MathEnv(files=file_of(tmp_path / "rows.jsonl"), tasks=["gsm8k"])


def test_grading_that_fails_ends_the_episode_without_a_reward():
    env = MathEnv(grading_cpu_s=1.0)

    async def episode():
        await env.reset(seed=0, options={"row": UNGRADABLE})
        with pytest.raises(GradingFailed):
            await env.step("\\boxed{1}")
        with pytest.raises(RuntimeError, match="call reset"):
            await env.step("\\boxed{1}")
        await env.reset(seed=0, options={"row": ROW})
        result = await env.step("\\boxed{1}")
        await env.close()
        return result

    assert asyncio.run(episode())[1] == 0.0


def test_tower_of_powers_is_a_wrong_answer_and_no_failure():
    step = play(MathEnv(grading_cpu_s=1.0), "\\boxed{9^{9^{9^9}}}", options={"row": ROW})[1]
    assert (step[1], step[4]["success"], step[4]["verdict"]) == (
        0.0,
        False,
        "answer too hard to compare",
    )


def test_words_of_the_question_may_stand_after_the_number():
    asked_for_clips = ROW | {
        "prompt": [
            {"role": "user", "content": "How many clips did Natalia sell altogether on the market?"}
        ],
        "reward_model": {"style": "rule", "ground_truth": "72"},
    }
    assert (
        play(MathEnv(), "#### 72 clips on the market", options={"row": asked_for_clips})[1][1]
        == 1.0
    )
    assert (
        play(MathEnv(), "#### 72 clips in a museum", options={"row": asked_for_clips})[1][1] == 0.0
    )


async def episodes_behind_a_server(count, *, failing):
    """Outcomes of episodes of sums, and of the rows whose seeds are in `failing`, whose grading
    fails; statistics of the pool.
    """
    async with EnvPool(
        "math",
        {"grading_cpu_s": 1.0},
        num_servers=1,
        envs_per_server=8,
        cluster="local",
        deadline_s=120.0,
    ) as pool:

        async def episode(seed):
            async with pool.slot() as slot:
                observation, _ = await slot.reset(
                    seed=seed, options={"row": UNGRADABLE} if seed in failing else {}
                )
                text = (
                    "\\boxed{1}"
                    if seed in failing
                    else solve(observation["messages"][0]["content"])
                )
                return await slot.step_chunk([text])

        outcomes = await asyncio.gather(*map(episode, range(count)), return_exceptions=True)
        return outcomes, pool.stats()


def test_many_light_environments_run_behind_one_server():
    outcomes, stats = asyncio.run(episodes_behind_a_server(100, failing=()))
    assert [outcome[1] for outcome in outcomes] == [1.0] * 100
    assert stats["env/failures"] == 0


@pytest.mark.slow  # starts a grader, which imports sympy, for every replay
def test_episode_that_cannot_be_graded_is_counted_as_failed_and_the_others_continue():
    outcomes, stats = asyncio.run(episodes_behind_a_server(30, failing=(3,)))
    assert [
        number for number, outcome in enumerate(outcomes) if isinstance(outcome, SimulationFailed)
    ] == [3]
    assert all(outcome[1] == 1.0 for number, outcome in enumerate(outcomes) if number != 3)
    assert stats["env/failures"] == 1
