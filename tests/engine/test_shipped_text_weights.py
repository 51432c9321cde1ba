"""The shipped language models: an environment's default model was trained for it, and is as good as
its notes state.
"""

import json

import pytest

from siirl.files.paths import find
from siirl.imitation.sft import NOTES_FILE, Questions, measure_answers
from siirl.imitation.sft_examples import sft_source
from siirl.models.chat import load_chat_tokenizer
from siirl.models.language_model import load_language_model
from siirl.params.parser import parse_config


@pytest.mark.parametrize("env", ["math", "tools", "sandbox"])
def test_the_default_weights_are_right_as_often_as_their_notes_say(env):
    """On other held-out questions than those of the notes; 0.1 is three standard deviations of 200
    at 40 %.
    """
    config = parse_config([f"env={env}"])
    folder = find(str(config.actor_rollout_ref.model.path))
    notes = json.loads((folder / NOTES_FILE).read_text())
    questions = Questions(sft_source(config.env), load_chat_tokenizer(folder), seed=1)
    measured = measure_answers(load_language_model(folder), questions.distinct(200))
    assert measured["sampled"] == pytest.approx(notes["held_out"]["sampled"], abs=0.1)
    assert 0.05 < measured["sampled"] < 0.5  # some answers to learn from, and some to improve
    assert f"--output assets/{folder.name}" in notes["command"]
