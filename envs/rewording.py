"""Paraphrases of a robot's instructions: other verbs, and the form of a request.

A verb is replaced together with its particle (`slide the window open`: `pull the window open`), and
only where a clause begins: at the first word, or after `and` or `then`. So adjectives and nouns
stay. The table covers the instructions of Meta-World and LIBERO (a test); a clause with any other
verb stays as it is, and only the frame changes.
"""

import re
from collections.abc import Sequence

import numpy as np

SYNONYMS = {
    "bring *": ("carry *", "move *"),
    "close *": ("shut *", "push * shut"),
    "drive *": ("knock *", "pound *"),
    "drop *": ("put *", "toss *"),
    "insert *": ("put *", "slide *"),
    "lift *": ("raise *", "take *"),
    "lock *": ("bolt *", "latch *"),
    "move *": ("bring *", "shift *"),
    "open *": ("pull * open", "pull open *"),
    "pick up *": ("grab *", "take *", "lift up *"),
    "place *": ("put *", "set *"),
    "press * down": ("push * down", "force * down"),
    "press *": ("push *", "hit *"),
    "pull * up": ("lift *", "raise *"),
    "pull *": ("draw *", "drag *"),
    "push *": ("shove *", "slide *"),
    "put *": ("place *", "set *"),
    "reach over *": ("go over *", "move over *"),
    "slide * closed": ("push * closed", "push * shut"),
    "slide * open": ("push * open", "pull * open"),
    "slide *": ("push *", "move *"),
    "stack *": ("pile *", "put *"),
    "sweep *": ("brush *", "push *"),
    "turn off *": ("switch off *", "shut off *"),
    "turn on *": ("switch on *", "switch * on"),
    "turn * off": ("switch * off", "shut * off"),
    "turn * on": ("switch * on", "switch on *"),
    "turn *": ("rotate *", "twist *"),
    "unlock *": ("unbolt *", "unlatch *"),
}
"""Verb phrases and their replacements, with `*` for the rest of the clause. Of phrases with the
same verb, the first one that fits applies."""
FRAMES = (
    "please {}",
    "could you {}",
    "could you please {}",
    "can you {}",
    "can you please {}",
    "would you {}",
)
_VERBS = sorted({phrase.split()[0] for phrase in SYNONYMS})
_JOINT = re.compile(rf"( and then | and | then )(?=(?:{'|'.join(_VERBS)}) )")
_PHRASES = {
    re.compile(re.escape(phrase).replace(r"\*", "(.+)")): synonyms
    for phrase, synonyms in SYNONYMS.items()
}


def reworded(instruction: str, generator: np.random.Generator) -> str:
    """`instruction` with another verb in each clause whose verb is known, in another frame."""
    sentence = "".join(
        choices[int(generator.integers(len(choices)))] for choices in _choices(instruction)
    )
    return FRAMES[int(generator.integers(len(FRAMES)))].format(sentence)


def longest_rewording(instructions: Sequence[str]) -> tuple[int, frozenset[str]]:
    """Bounds of `reworded`: largest number of characters, and all characters."""
    parts = [_choices(instruction) for instruction in instructions]
    length = max(sum(max(map(len, choices)) for choices in sentence) for sentence in parts)
    text = "".join([*FRAMES, *("".join(choices) for sentence in parts for choices in sentence)])
    return length + max(map(len, FRAMES)), frozenset(text) - frozenset("{}")


def _choices(instruction: str) -> list[tuple[str, ...]]:
    """The choices for each clause of the sentence, and the joints between clauses."""
    parts = _JOINT.split(instruction[:1].lower() + instruction[1:])
    return [
        (part,) if place % 2 else _synonymous(part)
        for place, part in enumerate(parts)  # clauses and joints alternate
    ]


def _synonymous(clause: str) -> tuple[str, ...]:
    for phrase, synonyms in _PHRASES.items():
        if (match := phrase.fullmatch(clause)) is not None:
            return tuple(synonym.replace("*", match[1]) for synonym in synonyms)
    return (clause,)
