"""Generated questions: right, the same for the same seed, and held-out ones never among the
training ones.
"""

import asyncio
import json
import re
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.math.comparing.expressions import compute
from envs.math.generators import (
    GENERATORS,
    GeneratedTask,
    distinct_questions,
    draw_question,
    held_out,
    prompt_row,
)
from envs.math.grading import Grader

TASKS = [
    "sums-1",
    "sums-2",
    "sums-18",
    "differences-1",
    "differences-2",
    "products-1",
    "products-18",
    "bases-2",
    "bases-18",
    "sorting-3",
    "sorting-18",
    "modular-1",
    "modular-3",
    "countdown-2",
    "countdown-4",
    "word-sums-1",
    "word-sums-5",
]
SHARE = 0.15


def draw(name, seed, split="train", share=SHARE):
    return draw_question(GeneratedTask.of(name), split=split, heldout_share=share, seed=seed)


def test_every_generator_is_tested_here():
    assert {name.rpartition("-")[0] for name in TASKS} == set(GENERATORS)


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_asks_the_same_and_others_ask_otherwise(name):
    assert draw(name, 5) == draw(name, 5)
    assert len({draw(name, seed).bare for seed in range(40)}) > 10


@pytest.mark.parametrize("name", TASKS)
@given(train=st.integers(0, 2**32), heldout=st.integers(0, 2**32))
@settings(
    derandomize=True, max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_no_seed_brings_a_held_out_exercise_into_training(name, train, heldout):
    first, second = draw(name, train), draw(name, heldout, split="heldout")
    assert first.key != second.key
    assert not held_out(first.key, share=SHARE)
    assert held_out(second.key, share=SHARE)


def test_all_two_digit_sums_are_on_one_side_each_and_swapped_ones_on_the_same():
    task = GeneratedTask.of("sums-2")
    splits = {
        split: {
            question.bare
            for question in distinct_questions(
                task, split=split, count=count, heldout_share=SHARE, seed=0
            )
        }
        for split, count in (("train", 5000), ("heldout", 1000))
    }
    assert not splits["train"] & splits["heldout"]
    swapped = {"{1}+{0}=".format(*re.findall(r"\d+", text)) for text in splits["train"]}
    assert not swapped & splits["heldout"]


@pytest.mark.parametrize("seed", range(30))
def test_sum_is_right(seed):
    question = draw("sums-3", seed)
    a, b = map(int, re.fullmatch(r"(\d{3})\+(\d{3})=", question.bare).groups())
    assert int(question.truth) == a + b
    assert question.words == f"What is {a} + {b}?"


@pytest.mark.parametrize("seed", range(30))
def test_remainder_is_right(seed):
    question = draw("modular-2", seed)
    a, b, c, modulus = map(
        int, re.fullmatch(r"\((\d+)\*(\d+)\+(\d+)\)%(\d+)=", question.bare).groups()
    )
    assert int(question.truth) == (a * b + c) % modulus


@pytest.mark.parametrize("seed", range(30))
def test_difference_is_right_and_may_be_negative(seed):
    question = draw("differences-2", seed)
    a, b = map(int, re.fullmatch(r"(\d{2})-(\d{2})=", question.bare).groups())
    assert int(question.truth) == a - b
    assert question.key == f"differences:{max(a, b)}-{min(a, b)}"


@pytest.mark.parametrize("seed", range(30))
def test_product_is_right(seed):
    question = draw("products-2", seed)
    a, b = map(int, re.fullmatch(r"(\d{2})\*(\d{2})=", question.bare).groups())
    assert int(question.truth) == a * b


@pytest.mark.parametrize("seed", range(30))
def test_digits_of_another_base_are_read_as_the_number(seed):
    question = draw("bases-3", seed)
    number, base = map(int, re.fullmatch(r"(\d{3}) in base ([2-9]):", question.bare).groups())
    assert int(question.truth, base) == number


@pytest.mark.parametrize("seed", range(30))
def test_sorted_digits_ascend_and_other_orders_are_the_same_exercise(seed):
    question = draw("sorting-5", seed)
    (digits,) = re.fullmatch(r"sort ([1-9]{5}):", question.bare).groups()
    assert list(question.truth) == sorted(digits)
    assert question.key == f"sorting:{question.truth}"


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("sorting-3", {"{truth}": True, "{asked}": False}),
        ("bases-2", {"{truth}": True, "{truth}_{base}": True, "{asked}": False}),
    ],
)
def test_a_copy_of_the_question_is_not_an_answer_to_it(name, answers):
    question = next(q for seed in range(99) if (q := draw(name, seed)).truth not in q.bare)
    row = prompt_row(GeneratedTask.of(name), question, wording="bare", split="train")
    asked, base = re.findall(r"\d+", question.bare)[0], question.bare[-2]
    grader = Grader(num_workers=1, cpu_s=5.0)
    for form, right in answers.items():
        text = form.format(truth=question.truth, asked=asked, base=base)
        grade = asyncio.run(
            grader.grade(text, truth=question.truth, style=row.style, question=question.bare)
        )
        assert grade.correct == right


def reachable(numbers, target):
    """Whether some order, operations and left-to-right or paired brackets make the target, by
    trying all.
    """
    for a, b, c in permutations(numbers):
        for first, second in product("+-*/", repeat=2):
            for text in (f"({a}{first}{b}){second}{c}", f"{a}{first}({b}{second}{c})"):
                try:
                    if compute(text).value == target:
                        return True
                except ValueError:
                    continue
    return False


@pytest.mark.parametrize("seed", range(15))
def test_countdown_can_be_solved(seed):
    task = json.loads(draw("countdown-3", seed).truth)
    assert len(task["numbers"]) == 3
    assert reachable(task["numbers"], task["target"])


@pytest.mark.parametrize("seed", range(15))
def test_solution_of_a_countdown_has_its_numbers_and_value(seed):
    question = draw("countdown-4", seed)
    task = json.loads(question.truth)
    solved = compute(question.solution)
    assert solved.value == task["target"]
    assert sorted(map(int, re.findall(r"\d+", question.solution))) == task["numbers"]


@pytest.mark.parametrize("seed", range(30))
def test_story_has_the_stated_result(seed):
    question = draw("word-sums-4", seed)
    first, *steps = question.words.split(". ")[:-1]
    count = int(re.search(r"has (\d+)", first)[1])
    for step in steps:
        amount = int(found[0]) if (found := re.findall(r"\d+", step)) else None
        if "finds" in step:
            count += amount
        elif "gives" in step:
            count -= amount
        elif "doubles" in step:
            count *= 2
        else:
            count += 2 * amount
        assert count >= 0
    assert len(steps) == 4
    assert int(question.truth) == count


def test_stories_with_other_names_are_one_exercise():
    draws = GENERATORS["word-sums"][0]
    by_key = {}
    for seed in range(3000):
        question = draws(np.random.default_rng(seed), 1)
        by_key.setdefault(question.key, set()).add(question.words)
    assert any(len(texts) > 1 for texts in by_key.values())


def test_share_of_held_out_questions_is_as_asked():
    keys = [f"sums:{a}+{b}" for a in range(100) for b in range(100)]
    share = np.mean([held_out(key, share=SHARE) for key in keys])
    assert abs(share - SHARE) < 4 * np.sqrt(SHARE * (1 - SHARE) / len(keys))
    assert not any(held_out(key, share=0.0) for key in keys)


def test_bare_question_is_graded_whole_and_worded_one_by_its_mark():
    task = GeneratedTask.of("sums-2")
    question = draw("sums-2", 1)
    assert prompt_row(task, question, wording="bare", split="train").style == "whole"
    worded = prompt_row(task, question, wording="words", split="train")
    assert worded.style == "rule"
    assert worded.prompt[0]["content"].endswith("####.")


def test_more_questions_than_there_are_is_answered():
    with pytest.raises(
        ValueError,
        match=r"'sums-1' has hardly more than \d+ train questions at heldout_share=0\.15, not 101",
    ):
        distinct_questions(
            GeneratedTask.of("sums-1"), split="train", count=101, heldout_share=SHARE, seed=0
        )


def test_all_one_digit_sums_are_a_hundred():
    assert (
        len(
            distinct_questions(
                GeneratedTask.of("sums-1"), split="train", count=100, heldout_share=0.0, seed=0
            )
        )
        == 100
    )


def test_held_out_questions_where_none_are_held_out_are_refused():
    with pytest.raises(ValueError, match=r"No heldout question of 'sums-1'.*heldout_share is 0"):
        draw("sums-1", 0, split="heldout", share=0.0)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sum-2", r"Unknown maths task 'sum-2'\. Did you mean 'sums-n'\? Known: sums-n, diff"),
        ("sums", "Unknown maths task 'sums'"),
        ("sums-0", "must end in a size from 1 to 18"),
        ("sums-99", "must end in a size from 1 to 18"),
        ("countdown-1", "must end in a size from 2 to 6"),
        ("sums-\u0662", "must end in a size"),
    ],
)
def test_unknown_task_is_answered(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        GeneratedTask.of(name)
