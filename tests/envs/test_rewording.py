"""Rewordings are sentences with another verb, for every instruction of Meta-World and LIBERO."""

import itertools
import re

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from envs.libero.suites import STEP_LIMITS, suite_tasks
from envs.metaworld.suite import INSTRUCTIONS
from envs.rewording import FRAMES, SYNONYMS, longest_rewording, reworded

LIBERO = {task.instruction for suite in STEP_LIMITS for task in suite_tasks(suite)}
SENTENCES = sorted({*INSTRUCTIONS.values(), *LIBERO})
VERBS = {synonym.split()[0] for synonyms in SYNONYMS.values() for synonym in synonyms}
SEEDS = range(30)
PARTICLES = {"up", "down", "on", "off", "open", "closed", "shut", "in", "out"}


def rewordings(instruction):
    """The sentences of all seeds, without their frames."""
    found = set()
    for seed in SEEDS:
        sentence = reworded(instruction, np.random.default_rng(seed))
        frames = [frame for frame in FRAMES if re.fullmatch(frame.format("(.+)"), sentence)]
        # "could you please open it" also begins with "could you"
        bare = sentence.removeprefix(max(frames, key=len).format(""))
        found.add(bare)
    return found


@pytest.mark.parametrize("instruction", SENTENCES)
def test_every_instruction_of_the_benchmarks_gets_other_verbs(instruction):
    found = rewordings(instruction)
    assert len(found) > 1
    for sentence in found:
        assert sentence.split()[0] in VERBS
        assert sentence.split()[0] != instruction.split()[0]


@pytest.mark.parametrize("instruction", SENTENCES)
def test_a_rewording_keeps_all_words_but_verbs_and_their_particles(instruction):
    known = {
        word for phrase in itertools.chain(SYNONYMS, *SYNONYMS.values()) for word in phrase.split()
    }
    for sentence in rewordings(instruction):
        kept = [word for word in sentence.split() if word not in known]
        assert kept == [word for word in instruction.split() if word not in known]


@pytest.mark.parametrize("instruction", SENTENCES)
def test_no_particle_is_doubled(instruction):
    for sentence in rewordings(instruction):
        for particle in PARTICLES:
            now, before = (text.split().count(particle) for text in (sentence, instruction))
            assert now <= max(1, before)


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("slide the window open", {"push the window open", "pull the window open"}),
        ("slide the window closed", {"push the window closed", "push the window shut"}),
        ("press the handle down", {"push the handle down", "force the handle down"}),
        ("turn the dial", {"rotate the dial", "twist the dial"}),
        ("turn off the stove", {"switch off the stove", "shut off the stove"}),
        (
            "reach over the wall and press the button",
            {
                "go over the wall and push the button",
                "go over the wall and hit the button",
                "move over the wall and push the button",
                "move over the wall and hit the button",
            },
        ),
        (
            "close the drawer and then put both the open box and the cup on it",
            {
                "shut the drawer and then place both the open box and the cup on it",
                "shut the drawer and then set both the open box and the cup on it",
                "push the drawer shut and then place both the open box and the cup on it",
                "push the drawer shut and then set both the open box and the cup on it",
            },
        ),
    ],
)
def test_a_verb_changes_with_its_particle_and_at_the_beginning_of_a_clause_only(
    instruction, expected
):
    assert rewordings(instruction) == expected


def test_an_instruction_without_a_known_verb_changes_its_frame_only():
    assert rewordings("water the open press") == {"water the open press"}


def test_all_frames_occur():
    sentences = {reworded("turn it", np.random.default_rng(seed)) for seed in range(60)}
    assert sentences == {
        frame.format(sentence) for frame in FRAMES for sentence in ("rotate it", "twist it")
    }


@given(seed=st.integers(0, 2**32 - 1), instruction=st.sampled_from(SENTENCES))
def test_every_rewording_lies_in_the_space(seed, instruction):
    length, characters = longest_rewording(SENTENCES)
    sentence = reworded(instruction, np.random.default_rng(seed))
    assert sentence in spaces.Text(length, charset=characters)
