"""Tests as ground truth, and the generator: bad tests are refused, problems are
sound, and held-out ones differ from training ones.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import problem

from envs.prompt_rows import PromptRow
from envs.sandbox import generator
from envs.sandbox.generator import (
    KINDS,
    SPLITS,
    WORDINGS,
    GeneratedTask,
    Specification,
    draw_row,
    problem_key,
)
from envs.sandbox.problems import Problem
from envs.text import message


def of_truth(truth):
    return Problem.of(PromptRow("test", (message("user", "?"),), truth))


def drawn(name, *, split="train", seed=0, wording="words", num_tests=10):
    return draw_row(
        GeneratedTask.of(name),
        split=split,
        heldout_share=0.2,
        num_tests=num_tests,
        wording=wording,
        seed=seed,
    )


@pytest.mark.parametrize(
    ("truth", "sentence"),
    [
        ("17", "must be a JSON object"),
        ("no JSON", "must be the tests as JSON"),
        ("[" * 100_000, "must be the tests as JSON"),
        ('{"inputs": []}', "must have a list 'outputs'"),
        ('{"inputs": [], "outputs": []}', "at least one"),
        ('{"inputs": ["1"], "outputs": ["1", "2"]}', "as many outputs as inputs"),
        ('{"inputs": [1, 2], "outputs": ["1", "2"]}', "input 0 must be text"),
        ('{"inputs": ["1", "2"], "outputs": ["1", null]}', "output 1 must be text"),
        (
            '{"inputs": [1, 2], "outputs": [1, 2], "fn_name": "f"}',
            "input 0 must be a list of arguments",
        ),
        (
            '{"inputs": [[1], [2]], "outputs": [1, 2], "fn_name": "f(x)"}',
            "'fn_name' must be a name",
        ),
        ('{"inputs": [[1], [2]], "outputs": [1, NaN], "fn_name": "f"}', "not finite"),
        (
            '{"inputs": ["1", "2"], "outputs": ["1", "2"], "tolerance": 1}',
            "'tolerance' must be a number",
        ),
        ('{"inputs": ["1", "2"], "outputs": ["1", "2"], "timeout": 1}', "unknown key 'timeout'"),
        ('{"inputs": ["1"], "outputs": ["1"]}', "a program that prints a constant would pass"),
        (
            '{"inputs": ["1", "2"], "outputs": ["1", "1 \\n"]}',
            "a program that prints a constant would pass",
        ),
        (
            '{"inputs": [[1], [2]], "outputs": [[1], [1]], "fn_name": "f"}',
            "a program that prints a constant would pass",
        ),
    ],
)
def test_tests_that_cannot_judge_are_refused(truth, sentence):
    with pytest.raises(ValueError, match=sentence):
        of_truth(truth)


def test_true_and_one_are_not_the_same_constant():
    assert problem(inputs=[[1], [2]], outputs=[1, True], function="f").best_constant == 1


@pytest.mark.parametrize("name", ["sorts-2", "lists", "lists-0", "lists-7", "lists-x", "lists-²"])
def test_unknown_task_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=r"numbers-n|from 1 to 6"):
        GeneratedTask.of(name)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    steps=st.integers(1, 4),
    split=st.sampled_from(SPLITS),
    wording=st.sampled_from(WORDINGS),
    seed=st.integers(0, 10**9),
    num_tests=st.integers(4, 20),
)
def test_generated_problem_is_sound(kind, steps, split, wording, seed, num_tests):
    row = drawn(f"{kind}-{steps}", split=split, wording=wording, seed=seed, num_tests=num_tests)
    asked = Problem.of(row)
    assert len(asked.cases) == num_tests
    # no result comes more often than in a quarter of tests and examples
    assert asked.best_constant <= -(-(num_tests + 2) // 4)
    assert len({case.given for case in asked.cases}) == num_tests
    assert row == drawn(
        f"{kind}-{steps}", split=split, wording=wording, seed=seed, num_tests=num_tests
    )  # the seed fixes it
    assert PromptRow.of(json.loads(json.dumps(row.as_columns()))) == row


def test_examples_of_the_prompt_are_not_tests():
    row = drawn("numbers-2", seed=3)
    (entry,) = row.prompt
    assert all(
        f"solve({json.loads(case.given)[0]})" not in entry["content"]
        for case in Problem.of(row).cases
    )


def test_no_test_and_no_solution_is_in_the_prompt():
    row = drawn("lists-3", seed=1)
    assert str(row.extra_info["solution"]) not in row.prompt[0]["content"]


def test_a_problem_in_few_words_asks_for_one_program_too():
    """Recognises the same steps on a list, given as one line."""
    asked: dict[str, set[str]] = {}
    for row in (
        drawn(f"{kind}-1", wording="bare", seed=seed)
        for kind in sorted(KINDS)
        for seed in range(60)
    ):
        asked.setdefault(row.prompt[0]["content"], set()).add(str(row.extra_info["solution"]))
    assert [words for words, programs in asked.items() if len(programs) > 1] == []


def test_train_and_heldout_share_no_problem():
    keys = {
        split: {drawn("numbers-1", split=split, seed=seed).extra_info["key"] for seed in range(80)}
        for split in SPLITS
    }
    assert not keys["train"] & keys["heldout"]
    assert min(map(len, keys.values())) >= 3


def test_the_same_in_other_words_is_the_same_problem():
    """Add 2, add 3 and add 5: who has seen one has seen the other."""
    probes = list(range(-20, 20))
    first, second = (
        Specification(("add 2", "add 3"), "(v + 2) + 3"),
        Specification(("add 5",), "v + 5"),
    )
    assert problem_key("numbers", first.apply(probes)) == problem_key(
        "numbers", second.apply(probes)
    )
    third = Specification(("add 6",), "v + 6")
    assert problem_key("numbers", first.apply(probes)) != problem_key(
        "numbers", third.apply(probes)
    )


def test_known_problem_by_hand():
    specification = Specification(
        ("keep only even numbers", "give the sum"), "sum([x for x in v if x % 2 == 0])"
    )
    assert specification.apply([[1, 2, 4], [3], []]) == [6, 0, 0]


def test_split_without_problems_is_reported(monkeypatch):
    monkeypatch.setattr(generator, "MAX_DRAWS", 50)
    with pytest.raises(
        ValueError, match="No heldout problem of 'lists-2' in 50 draws: heldout_share is 0"
    ):
        draw_row(
            GeneratedTask.of("lists-2"),
            split="heldout",
            heldout_share=0.0,
            num_tests=4,
            wording="bare",
            seed=0,
        )
