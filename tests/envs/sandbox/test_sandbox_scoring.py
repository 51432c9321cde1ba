"""Verdicts on results: comparison, reward, and the program in an answer. By hand, without a
sandbox.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import problem

from envs.sandbox.limits import Ending, Execution
from envs.sandbox.scoring import Verdict, equal_values, fault_of, program_of, score

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("result", "expected", "tolerance", "equal"),
    [
        (3, 3, 0.0, True),
        (3.0, 3, 0.0, True),
        (True, 1, 0.0, False),
        (1, True, 0.0, False),
        (None, None, 0.0, True),
        (None, 0, 0.0, False),
        (0, False, 0.0, False),
        ("3", 3, 0.0, False),
        ([1, [2]], [1, [2]], 0.0, True),
        ([1, 2], [1, 2, 3], 0.0, False),
        ({"a": 1}, {"a": 1}, 0.0, True),
        ({"a": 1}, {"b": 1}, 0.0, False),
        ({"0": 1}, [1], 0.0, False),
        (1.0000001, 1.0, 0.0, False),
        (1.0000001, 1.0, 1e-6, True),
        (1000.0005, 1000.0, 1e-6, True),  # 1e-6 of 1000
        (1000.002, 1000.0, 1e-6, False),
        (math.nan, 1.0, 0.5, False),
        (math.inf, 1.0, 0.5, False),
        (10**400, 1.5, 0.5, False),
    ],
)
def test_values_are_equal_by_kind_and_size(result, expected, tolerance, equal):
    assert equal_values(result, expected, tolerance) is equal


@settings(derandomize=True, max_examples=30, deadline=None)
@given(value=JSON)
def test_every_value_equals_itself(value):
    assert equal_values(value, value, 0.0)


TEXTS = problem(inputs=["", ""], outputs=["1 2\n3\n", "other"])
NUMBERS = problem(inputs=["", ""], outputs=["0.5 1", "other"], tolerance=1e-3)
CALLS = problem(inputs=[[], []], outputs=[[1, 2], 0], function="f")


@pytest.mark.parametrize(
    ("asked", "output", "fault"),
    [
        (TEXTS, b"1 2\n3\n", None),
        (TEXTS, b"1 2  \n3", None),
        (TEXTS, b"1 2\r\n3\r\n\n\n", None),
        (TEXTS, b"\n1 2\n3", "wrong answer: wrong number of lines"),
        (TEXTS, b"1  2\n3", "wrong answer"),
        (TEXTS, b"1 2\n4", "wrong answer"),
        (TEXTS, b"", "nothing was printed"),
        (TEXTS, b"\xff\xfe", "wrong answer: wrong number of lines"),
        (NUMBERS, b"0.5004 1.0", None),
        (NUMBERS, b"0.502 1.0", "wrong answer"),
        (NUMBERS, b"nan 1", "wrong answer"),
        (NUMBERS, b"0.5", "wrong answer"),
        (CALLS, b"[1, 2]", None),
        (CALLS, b"[2, 1]", "wrong answer"),
        (CALLS, b"", "f did not return"),
        (CALLS, b"[1, 2] [1, 2]", "the result is not JSON"),
        (CALLS, b"[" * 100_000, "the result is not JSON"),
        (CALLS, b"9" * 10_000, "the result is not JSON"),
    ],
)
def test_results_are_compared_with_the_expected_ones(asked, output, fault):
    assert fault_of(Execution(Ending.FINISHED, output=output), asked.cases[0], asked) == fault


@pytest.mark.parametrize("ending", [ending for ending in Ending if ending is not Ending.FINISHED])
def test_right_output_counts_only_if_the_program_finished(ending):
    assert fault_of(Execution(ending, output=b"[1, 2]"), CALLS.cases[0], CALLS) == ending.value


def test_right_output_counts_only_with_exit_status_0():
    execution = Execution(
        Ending.FINISHED, exit_status=1, output=b"[1, 2]", errors=b"Traceback\nValueError: x\n"
    )
    assert fault_of(execution, CALLS.cases[0], CALLS) == "exit status 1: ValueError: x"


def test_share_counts_from_the_best_constant():
    asked = problem(inputs=[[1], [2], [3], [4], [5]], outputs=[0, 0, 1, 2, 3], function="f")
    assert asked.best_constant == 2
    assert [score(Verdict(passed, 5, ""), asked, "share") for passed in range(6)] == pytest.approx(
        [0, 0, 0, 1 / 3, 2 / 3, 1]
    )
    assert [score(Verdict(passed, 5, ""), asked, "all") for passed in (0, 4, 5)] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("print(1)", "print(1)"),
        ("Here:\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```\na\n```\nno, better:\n```py\nb\n```", "b\n"),
        ("```python\nprint(1)", "print(1)"),
        ("<think>```python\nwrong\n```</think>```python\nright\n```", "right\n"),
        ("<think>print(0)</think>print(1)", "print(1)"),
        ("", ""),
        ("```python\n```", ""),
    ],
)
def test_program_is_the_last_block_of_the_answer(text, program):
    assert program_of(text) == program
