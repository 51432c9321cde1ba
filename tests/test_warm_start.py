"""The warm start's command on text: a folder that can be loaded, with the command that made it; what it cannot do is said."""

import json

import pytest

from siirl.models.chat import load_chat_tokenizer
from siirl.models.language_model import load_language_model
from siirl.warm_start import main

SMALL = "actor_rollout_ref.model.options={width: 32, layers: 1, heads: 1, feed_forward: 32}"
SHORT = ("--updates", "2", "--batch-rows", "4")


def test_a_model_of_ones_own_tasks_is_made_by_one_command(tmp_path, capsys):
    command = ["--output", str(tmp_path), *SHORT, "env=math", "env.tasks=[sums-1]", SMALL]
    assert main(command) == 0
    notes = json.loads((tmp_path / "warm_start.json").read_text())
    assert notes["command"].startswith("python -m siirl.warm_start --output ")
    assert notes["updates"] == 2
    assert load_language_model(tmp_path).config.hidden_size == 32
    assert load_chat_tokenizer(tmp_path).vocab_size == 264
    assert "held-out questions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("env=tools",), "set env.kwargs.announce=false"),
        (("env=math", "env.tasks=[countdown-3]"), "which names no answer to learn from"),
        (("env=math", "actor_rollout_ref.model.options={bins: 3}"), "fits no TinyLMShape"),
    ],
)
def test_what_cannot_be_taught_is_said_in_a_sentence(tmp_path, capsys, overrides, told):
    assert main(["--output", str(tmp_path / "out"), *SHORT, *overrides]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
