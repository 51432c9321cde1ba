"""Arithmetic questions from a seeded generator, by task name: `sums-2` are sums of two-digit
numbers, `word-sums-3` stories of three steps.

| name | size | example |
|---|---|---|
| sums-n | digits of each number | 12+34= |
| differences-n | digits of each number | 12-34= |
| products-n | digits of each number | 12*34= |
| modular-n | digits of each number | (12*34+5)%7= |
| bases-n | decimal digits of the number | 25 in base 3: |
| sorting-n | digits of the number | sort 5391: |
| countdown-n | given numbers | reach 24 with 3, 5, 9 |
| word-sums-n | steps of the story | Ada has 5 apples. … |

A question has a `key`, the same for questions that are the same exercise (3+5 and 5+3; a story with
other names); a hash of it separates training from held-out questions, so no seed moves a question
to the other split.
"""

import functools
import hashlib
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

import numpy as np

from envs.names import listed, nearest
from envs.prompt_rows import PromptRow
from envs.text import message

Split = Literal["train", "heldout"]
SPLITS: tuple[str, ...] = get_args(Split)
Wording = Literal["bare", "words"]
WORDINGS: tuple[str, ...] = get_args(Wording)
INSTRUCTION = "Write the final answer after ####."
MAX_DRAWS = (
    10_000  # for one question of a split; at a share of 1 %, the chance of finding none is 10^-43
)

NAMES = ("Ada", "Ben", "Chloe", "Dev", "Eva", "Femi", "Grace", "Hugo", "Ines", "Jun")
THINGS = (
    "apples",
    "books",
    "coins",
    "eggs",
    "marbles",
    "pens",
    "shells",
    "stamps",
    "stickers",
    "tickets",
)


class Question(NamedTuple):
    """One exercise, in its two wordings."""

    bare: str
    """For models that continue a text: the answer is the whole continuation."""
    words: str
    """For chat models; does not state a form of answer."""
    truth: str
    key: str
    style: str = "number"
    """`number`, or `countdown`."""
    solution: str | None = None
    """A right answer, if the truth itself is not one."""


class GeneratedTask(NamedTuple):
    """A generator with its size."""

    name: str
    draw: Callable[[np.random.Generator, int], Question]
    size: int

    @classmethod
    def of(cls, name: str) -> "GeneratedTask":
        """Look `name` up, for example `sums-2`.

        Raises:
            ValueError: An unknown generator or a size it does not have, with the known ones.
        """
        kind, _, size = name.rpartition("-")
        if kind not in GENERATORS:
            known = [f"{kind}-n" for kind in GENERATORS]
            raise ValueError(
                f"Unknown maths task {name!r}.{nearest(name, known)} Known: {listed(name, known)}, "
                "for example sums-2."
            )
        draw, largest = GENERATORS[kind]
        smallest = SMALLEST.get(kind, 1)
        if not (size.isascii() and size.isdigit() and smallest <= int(size) <= largest):
            raise ValueError(
                f"Maths task {name!r} must end in a size from {smallest} to {largest}, for example "
                f"{kind}-{smallest}."
            )
        return cls(name, draw, int(size))


def held_out(key: str, *, share: float) -> bool:
    """Whether an exercise belongs to the held-out share `share` of all exercises."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def draw_question(
    task: GeneratedTask, *, split: str, heldout_share: float, seed: int | None
) -> Question:
    """The question of `split` that `seed` selects.

    Raises:
        ValueError: The split has no questions, or too few to find one.
    """
    draw = _first_of_split if seed is None else _remembered
    return draw(task, split, heldout_share, seed)


def _first_of_split(
    task: GeneratedTask, split: str, heldout_share: float, seed: int | None
) -> Question:
    for question in itertools.islice(_draws(task, seed), MAX_DRAWS):
        if held_out(question.key, share=heldout_share) == (split == "heldout"):
            return question
    raise ValueError(
        f"No {split} question of {task.name!r} in {MAX_DRAWS} draws: heldout_share is "
        f"{heldout_share}."
    )


# the rollouts of a group ask the same question, each in a separate environment
_remembered = functools.lru_cache(maxsize=1024)(_first_of_split)


def distinct_questions(
    task: GeneratedTask, *, split: str, count: int, heldout_share: float, seed: int
) -> list[Question]:
    """`count` questions of `split`, no two the same, in the order they were drawn.

    Raises:
        ValueError: The split has fewer than `count` distinct questions.
    """
    found: dict[str, Question] = {}
    for question in itertools.islice(_draws(task, seed), 100 * (count + 100)):
        if held_out(question.key, share=heldout_share) == (split == "heldout"):
            found.setdefault(question.bare, question)
        if len(found) == count:
            return list(found.values())
    raise ValueError(
        f"Task {task.name!r} has hardly more than {len(found)} {split} questions at "
        f"heldout_share={heldout_share}, not {count}."
    )


def prompt_row(task: GeneratedTask, question: Question, *, wording: str, split: str) -> PromptRow:
    """The question in the form of a file's row."""
    bare = wording == "bare"
    if question.style == "countdown":
        style = question.style
    elif bare:
        style = "whole"
    else:
        style = "rule"
    solution = {} if question.solution is None else {"solution": question.solution}
    return PromptRow(
        data_source=task.name,
        prompt=(message("user", question.bare if bare else f"{question.words}\n{INSTRUCTION}"),),
        ground_truth=question.truth,
        style=style,
        extra_info={"key": question.key, "split": split, **solution},
    )


def _draws(task: GeneratedTask, seed: int | None) -> Iterator[Question]:
    random = np.random.default_rng(None if seed is None else [seed, zlib.crc32(task.name.encode())])
    while True:
        yield task.draw(random, task.size)


def _number(random: np.random.Generator, digits: int) -> int:
    return int(random.integers(10 ** (digits - 1) if digits > 1 else 0, 10**digits))


def _sum(random: np.random.Generator, digits: int) -> Question:
    a, b = _number(random, digits), _number(random, digits)
    return Question(f"{a}+{b}=", f"What is {a} + {b}?", str(a + b), f"sums:{min(a, b)}+{max(a, b)}")


def _difference(random: np.random.Generator, digits: int) -> Question:
    a, b = _number(random, digits), _number(random, digits)
    key = f"differences:{max(a, b)}-{min(a, b)}"
    return Question(f"{a}-{b}=", f"What is {a} - {b}?", str(a - b), key)


def _product(random: np.random.Generator, digits: int) -> Question:
    a, b = _number(random, digits), _number(random, digits)
    key = f"products:{min(a, b)}*{max(a, b)}"
    return Question(f"{a}*{b}=", f"What is {a} * {b}?", str(a * b), key)


def _modular(random: np.random.Generator, digits: int) -> Question:
    a, b, c = (_number(random, digits) for _ in range(3))
    modulus = int(random.integers(2, 10**digits))
    key = f"modular:{min(a, b)}*{max(a, b)}+{c}%{modulus}"
    words = f"What is the remainder when {a} * {b} + {c} is divided by {modulus}?"
    return Question(f"({a}*{b}+{c})%{modulus}=", words, str((a * b + c) % modulus), key)


def _base(random: np.random.Generator, digits: int) -> Question:
    number, base = _number(random, digits), int(random.integers(2, 10))
    words = f"Write the decimal number {number} in base {base}."
    truth = np.base_repr(number, base)
    return Question(f"{number} in base {base}:", words, truth, f"bases:{number} in {base}")


def _sorting(random: np.random.Generator, count: int) -> Question:
    """The answer is the digits of one number, because lists are graded in any order."""
    digits = "".join(map(str, random.integers(1, 10, count)))
    ascending = "".join(sorted(digits))
    words = f"Write the digits of {digits} in ascending order, as one number."
    return Question(f"sort {digits}:", words, ascending, f"sorting:{ascending}")


def _countdown(random: np.random.Generator, count: int) -> Question:
    numbers = [int(number) for number in random.integers(1, 26, count)]
    target, solution = 0, ""
    while not 1 <= target <= 999:  # made from all the numbers, so a solution exists
        target, solution = numbers[0], str(numbers[0])
        for number in numbers[1:]:
            before = solution if solution.isdigit() else f"({solution})"
            target, sign = _combined(random, target, number)
            solution = f"{before}{sign}{number}"
    listed = sorted(numbers)
    bare = f"{','.join(map(str, listed))}->{target}:"
    words = (
        f"Use the numbers {', '.join(map(str, listed))}, each at most once, with + - * / and "
        "parentheses, in an expression whose value is "
        f"{target}. The answer is the expression."
    )
    truth = json.dumps({"numbers": listed, "target": target})
    key = f"countdown:{listed}->{target}"
    return Question(bare, words, truth, key, style="countdown", solution=solution)


def _combined(random: np.random.Generator, left: int, right: int) -> tuple[int, str]:
    """A value of the two, and its operator."""
    choices = [(left + right, "+"), (left - right, "-"), (left * right, "*")]
    if left % right == 0:
        choices.append((left // right, "/"))
    return choices[int(random.integers(len(choices)))]


def _word_sum(random: np.random.Generator, steps: int) -> Question:
    name = NAMES[int(random.integers(len(NAMES)))]
    thing = THINGS[int(random.integers(len(THINGS)))]
    count = int(random.integers(2, 21))
    sentences, key = [f"{name} has {count} {thing}."], [str(count)]
    for _ in range(steps):
        amount = int(random.integers(2, 21))
        match int(random.integers(4)):
            case 0:
                count = count + amount
                sentence = f"{name} finds {amount} more."
                sign = f"+{amount}"
            case 1 if amount <= count:
                count = count - amount
                sentence = f"{name} gives {amount} away."
                sign = f"-{amount}"
            case 2 if count <= 100:
                count = 2 * count
                sentence = "Then the number doubles."
                sign = "*2"
            case _:
                count = count + 2 * amount
                sentence = f"{name} buys two boxes with {amount} each."
                sign = f"+2*{amount}"
        sentences.append(sentence)
        key.append(sign)
    text = " ".join([*sentences, f"How many {thing} does {name} have now?"])
    return Question(f"{text} ", text, str(count), f"word-sums:{' '.join(key)}")


GENERATORS: dict[str, tuple[Callable[[np.random.Generator, int], Question], int]] = {
    "sums": (_sum, 18),
    "differences": (_difference, 18),
    "products": (_product, 18),
    "modular": (_modular, 18),
    "bases": (_base, 18),
    "sorting": (_sorting, 18),
    "countdown": (_countdown, 6),
    "word-sums": (_word_sum, 12),
}
"""Kind to generator and largest size."""
SMALLEST = {"sorting": 2, "countdown": 2}
"""Smallest size of the kinds that do not start at 1."""
