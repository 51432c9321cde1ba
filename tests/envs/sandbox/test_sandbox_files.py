"""Problems from files: three forms, and everything that can be wrong with a row."""

import base64
import json
import os
import pickle
import zlib

import pytest
from trials import verdict

from envs.prompt_files import write_prompts
from envs.prompt_rows import PromptRow
from envs.sandbox.problem_files import FileProblems, read_problems
from envs.sandbox.problems import encoded_tests
from envs.text import message

APPS = {
    "question": "Add two numbers.",
    "input_output": json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}),
    "starter_code": "",
}
APPS_CALL = {
    "question": "Add two numbers.",
    "input_output": json.dumps(
        {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}
    ),
    "starter_code": "class Solution:\n    def add(self, a, b):\n",
}
LIVE = {
    "question_content": "Add two numbers.",
    "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "3\n4", "output": "7", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "add"}),
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n",
}


def packed(value):
    """Packs tests like LiveCodeBench's private ones."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


BOMB = base64.b64encode(zlib.compress(bytes(300 * 2**20), 1)).decode()  # a megabyte for 300
CUT_OFF = base64.b64encode(zlib.compress(bytes(1000))[:-2]).decode()


def write(path, *rows):
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return str(path)


def test_apps_with_standard_input(tmp_path, small):
    (asked,) = read_problems(write(tmp_path / "a.jsonl", APPS)).problems
    assert asked.function is None
    assert [case.given for case in asked.cases] == [b"1 2\n", b"3 4\n"]
    assert "reads from standard input" in asked.row.prompt[0]["content"]
    assert verdict(small, asked, "print(sum(map(int, input().split())))").success


def test_apps_with_a_method(tmp_path, small):
    (asked,) = read_problems(write(tmp_path / "a.jsonl", APPS_CALL)).problems
    assert (asked.function, [case.expected for case in asked.cases]) == ("Solution.add", [3, 7])
    assert verdict(small, asked, "class Solution:\n    def add(self, a, b): return a + b").success


@pytest.mark.parametrize(
    "pack",
    [json.dumps, lambda cases: packed(json.dumps(cases)), packed],
    ids=["plain", "packed text", "packed list"],
)
def test_tests_of_livecodebench_are_unpacked_and_judged(tmp_path, small, pack):
    cases = [{"input": "3\n4", "output": "7", "testtype": "functional"}]
    (asked,) = read_problems(
        write(tmp_path / "a.jsonl", LIVE | {"private_test_cases": pack(cases)})
    ).problems
    assert (asked.function, [case.given for case in asked.cases]) == (
        "Solution.add",
        [b"[1, 2]", b"[3, 4]"],
    )
    assert verdict(small, asked, "class Solution:\n    def add(self, a, b): return a + b").success


def test_pickle_that_would_call_something_is_refused(tmp_path):
    class Call:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "called"),)

    with pytest.raises(
        ValueError, match=r"line 1: private_test_cases are neither .* it needs .*mkdir"
    ):
        read_problems(write(tmp_path / "a.jsonl", LIVE | {"private_test_cases": packed(Call())}))
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_of_write_prompts_are_read_as_problems(tmp_path, ending):
    truth = encoded_tests(inputs=[[1], [2]], outputs=[2, 3], function="f")
    write_prompts(
        tmp_path / f"a.{ending}",
        [PromptRow("mine", (message("user", "Add one."),), truth, style="code", ability="code")],
    )
    (asked,) = read_problems(str(tmp_path / f"a.{ending}")).problems
    assert (asked.row.data_source, asked.function) == ("mine", "f")


def test_problems_that_cannot_be_judged_are_left_out_and_counted(tmp_path):
    constant = APPS | {"input_output": json.dumps({"inputs": ["1", "2"], "outputs": ["1", "1"]})}
    found = read_problems(write(tmp_path / "a.jsonl", APPS, constant, APPS | {"input_output": ""}))
    assert (len(found.problems), sum(found.dropped.values())) == (1, 2)
    assert (
        FileProblems([str(tmp_path / "a.jsonl")], tasks=None, heldout_share=0.0).dropped.total()
        == 2
    )


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "has no rows|no problem"),
        (["{"], "line 1: not JSON"),
        (["[1]"], "line 1: a JSON object is expected"),
        ([{"prompt": "?"}], "has no column"),
        ([APPS, {"question": "?"}], "line 2: column 'input_output' is missing"),
        ([APPS | {"question": " "}], "line 1: the question must be text"),
        ([APPS | {"input_output": "{"}], "line 1: .*Correct or remove the row"),
        ([APPS | {"input_output": ""}], "no problem that can be judged"),
        ([LIVE | {"private_test_cases": "!"}], "line 1: private_test_cases are neither JSON nor"),
        ([LIVE | {"private_test_cases": "{}"}], "line 1: private_test_cases must be a list"),
        (
            [LIVE | {"private_test_cases": BOMB}],
            "line 1: private_test_cases are cut off, or unpack to more than 268435456 bytes",
        ),
        (
            [LIVE | {"private_test_cases": CUT_OFF}],
            "line 1: private_test_cases are cut off, or unpack to more than",
        ),
    ],
)
def test_file_that_cannot_be_read_is_reported(tmp_path, rows, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_problems(write(tmp_path / "a.jsonl", *rows))


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.jsonl"):
        read_problems(str(tmp_path / "none.jsonl"))


def test_splits_of_a_file_are_disjoint_and_complete(tmp_path):
    file = write(
        tmp_path / "a.jsonl", *[APPS | {"question": f"Question {number}"} for number in range(40)]
    )
    problems = FileProblems([file], tasks=["apps"], heldout_share=0.3)
    asked = {
        split: {
            problems.draw("apps", split=split, seed=seed).row.prompt[0]["content"]
            for seed in range(400)
        }
        for split in ("train", "heldout")
    }
    assert not asked["train"] & asked["heldout"]
    assert len(asked["train"] | asked["heldout"]) == 40
    assert 4 <= len(asked["heldout"]) <= 20


def test_split_or_task_that_a_file_lacks_is_reported(tmp_path):
    file = write(tmp_path / "a.jsonl", APPS)
    with pytest.raises(
        ValueError, match="None of the 1 problems of 'apps' is in the split heldout"
    ):
        FileProblems([file], tasks=None, heldout_share=0.0).draw("apps", split="heldout", seed=0)
    with pytest.raises(ValueError, match="has the data_source 'other'; there are: apps"):
        FileProblems([file], tasks=["other"], heldout_share=0.0)
