"""YAML whose aliases expand beyond a limit is refused before it is read."""

import pytest

from siirl.files.yaml_text import MOST_VALUES, check_expansion
from siirl.terminal.exit_status import REFUSED
from siirl.train import main

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
)


@pytest.mark.parametrize(
    "words", [("--config", "{file}"), ("pipeline=grpo", "dag.workflow_file={file}")]
)
def test_a_billion_laughs_are_refused(tmp_path, words, capsys):
    file = tmp_path / "laughs.yaml"
    file.write_text(LAUGHS)
    assert main(["--plan", *(word.format(file=file) for word in words)]) == REFUSED
    assert (
        f"with its aliases expanded it has more than {MOST_VALUES} values"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("a: &a [*a]", "more than"), ("[" * 100_000, "nested too deeply"), (LAUGHS, "more than")],
    ids=["itself", "nested", "laughs"],
)
def test_a_yaml_that_expands_without_end_is_refused(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_expansion(text)


@pytest.mark.parametrize(
    "text", ["", "a: 1", "base: &b {lr: 1}\none: *b\ntwo: {<<: *b, lr: 2}", f"a: [{'x, ' * 9000}]"]
)
def test_ordinary_texts_pass(text):
    check_expansion(text)
