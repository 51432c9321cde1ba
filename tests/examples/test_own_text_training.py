"""The example of a user's training script trains, and is as short as its documentation says."""

import ast
import re
from pathlib import Path

import own_text_training


def test_two_steps_train_the_acting_model_on_mixed_groups(capsys):
    own_text_training.main(steps=2, questions=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 1", "step 2"]
    for line in lines:
        right, gap = re.search(r"of which (\d+)% right; log-prob gap (\S+)$", line).groups()
        assert 0 < int(right) < 100  # of groups in which some are right and some are wrong
        assert (
            float(gap) < 1e-4
            # what acted had the weights of before the update, in the second step those of after the
            # first
        )


def test_it_has_fifty_lines_at_most_and_one_import_of_the_platform():
    lines = code_lines(own_text_training)
    assert len(lines) <= 50
    assert [line for line in lines if "siirl" in line] == [
        "from siirl.user_interface import own_loop as rl"
    ]
    # one statement a line
    assert not [line for line in lines if ";" in line.replace("; log-prob", "")]


def code_lines(module) -> list[str]:
    """Lines of code, without comments and docstrings."""
    text = Path(module.__file__).read_text()
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            told.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    numbered = enumerate(text.splitlines(), start=1)
    return [
        line
        for number, line in numbered
        if number not in told and line.strip() and not line.strip().startswith("#")
    ]
