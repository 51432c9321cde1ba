"""The shipped vision-language model counts as well as its notes state, and guesses without
pictures.
"""

import importlib.util
import json

import pytest

from benchmarks.counted_dots import MOST, dots_rows
from siirl.files.paths import find
from siirl.imitation.sft import NOTES_FILE, measure_answers
from siirl.models.chat import load_chat_tokenizer
from siirl.models.language_model import load_language_model

FOLDER = "assets/tiny_vlm"


@pytest.fixture(scope="module")
def measured():
    """Share of right answers to 200 questions, with pictures and with grey ones."""
    place = find(FOLDER) / "make.py"
    spec = importlib.util.spec_from_file_location("make_tiny_vlm", place)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    model, tokenizer = load_language_model(FOLDER), load_chat_tokenizer(FOLDER)
    return [
        measure_answers(model, made.drawn(dots_rows(seed=2, grey=grey), 200, tokenizer))
        for grey in (False, True)
    ]


def test_the_shipped_model_has_the_success_of_its_notes(measured):
    """0.1 is three standard deviations of 200 at 40 %."""
    notes = json.loads((find(FOLDER) / NOTES_FILE).read_text())
    assert measured[0]["sampled"] == pytest.approx(notes["held_out"]["sampled"], abs=0.1)
    assert 0.1 < measured[0]["sampled"] < 0.5  # some answers to learn from, and some to improve
    assert f"--output {FOLDER}" in notes["command"]


def test_without_pictures_the_model_guesses(measured):
    assert measured[1]["sampled"] == pytest.approx(1 / MOST, abs=0.1)
