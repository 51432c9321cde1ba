"""Spaces, checks and messages of text environments."""

import pickle

import pytest

from envs.text import (
    MESSAGES,
    Messages,
    ModelText,
    checked_messages,
    checked_text,
    message,
    observe,
    text_spec,
)

SPEC = text_spec(name="talk", tasks=["a"], max_turns=3, max_action_characters=10)


def test_observation_is_in_its_space_also_at_the_end():
    for messages in ([message("user", "12+34=")], []):
        assert SPEC.observation_space.contains(observe(messages))


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "text",
        ({"role": "user", "content": "x"},),
        [{"role": "user"}],
        [{"role": "robot", "content": "x"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": "x", "name": "y"}],
    ],
)
def test_anything_else_is_not_a_list_of_messages(messages):
    assert not Messages().contains(messages)


def test_observation_has_its_own_messages():
    said = [message("user", "x")]
    seen = observe(said)[MESSAGES]
    seen[0]["content"] = "y"
    assert said[0]["content"] == "x"


@pytest.mark.parametrize("text", ["", "\u4f60\u597d", "\x00", "\ud800", "0123456789"])
def test_every_short_text_is_an_action(text):
    assert SPEC.action_space.contains(text)
    assert checked_text(text, space=SPEC.action_space) == text


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (7, "a str, got int"),
        (None, "got NoneType"),
        ("x" * 11, "may have at most 10 characters .*got 11"),
    ],
)
def test_everything_else_is_refused(action, sentence):
    assert not SPEC.action_space.contains(action)
    with pytest.raises(ValueError, match=sentence):
        checked_text(action, space=SPEC.action_space)


def test_samples_are_in_their_spaces_and_fixed_by_the_seed():
    samples = []
    for _ in range(2):
        space = ModelText(1000)
        space.seed(3)
        samples.append([space.sample() for _ in range(20)])
    assert samples[0] == samples[1]
    assert all(space.contains(text) for text in samples[0])
    assert Messages().contains(Messages().sample())


def test_spec_travels_and_stays_the_same():
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC


def test_prompt_is_taken_from_any_sequence_of_mappings():
    assert checked_messages(({"role": "user", "content": "x", "extra": 1},)) == [
        message("user", "x")
    ]
