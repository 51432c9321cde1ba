"""Small generated programming problems; task `lists-2` asks for two steps on a list of numbers.

| name | given | form |
|---|---|---|
| numbers-n | a whole number | function |
| lists-n | a list of whole numbers | function |
| texts-n | a word | function |
| lines-n | a line of whole numbers | standard input |

A problem is n steps in words. Its tests come from the steps' code, which is ours and runs here. A
hash of the results on fixed probes assigns problems to training or held-out. So two problems that
compute the same in different words share a split for every seed.
"""

import functools
import hashlib
import json
import math
import zlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from envs.names import listed, nearest
from envs.prompt_rows import PromptRow
from envs.sandbox.problems import STYLE, encoded_tests
from envs.text import message

Split = Literal["train", "heldout"]
SPLITS: tuple[str, ...] = get_args(Split)
Wording = Literal["bare", "words"]
WORDINGS: tuple[str, ...] = get_args(Wording)
INSTRUCTION = "Answer with the whole program in one ```python block."
MAX_STEPS = 6
MAX_DRAWS = 10_000  # for one problem of a split
NUM_PROBES = 16
NUM_EXAMPLES = 2  # shown in the prompt, not tested
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Step(NamedTuple):
    """One step, in words and in Python.

    `{v}` is the value so far, `{e}` the same without parentheses; other fields are drawn.
    """

    words: str
    code: str


class Kind(NamedTuple):
    """A family of problems."""

    subject: str
    steps: tuple[Step, ...]
    last_steps: tuple[Step, ...] = ()
    """Steps that may only come last: their result is not a list."""
    reads_line: bool = False


NUMBER_STEPS = (
    Step("add {k}", "{v} + {k}"),
    Step("subtract {k}", "{v} - {k}"),
    Step("multiply by {k}", "{v} * {k}"),
    Step("take the remainder of dividing by {k}", "{v} % {k}"),
    Step("divide by {k} and round down", "{v} // {k}"),
    Step("square it", "{v} ** 2"),
    Step("change its sign", "-{v}"),
)
LIST_STEPS = (
    Step("add {k} to each number", "[x + {k} for x in {e}]"),
    Step("multiply each number by {k}", "[x * {k} for x in {e}]"),
    Step("keep only numbers above {k}", "[x for x in {e} if x > {k}]"),
    Step("keep only even numbers", "[x for x in {e} if x % 2 == 0]"),
    Step("reverse the list", "{v}[::-1]"),
    Step("sort the list in ascending order", "sorted({e})"),
    Step("drop the first number", "{v}[1:]"),
    Step("keep the first {k} numbers", "{v}[:{k}]"),
    Step("take the remainder of dividing each number by {k}", "[x % {k} for x in {e}]"),
)
LIST_ENDS = (
    Step("give the sum", "sum({e})"),
    Step("give the largest number, or 0 if there is none", "max({e}, default=0)"),
    Step("give how many numbers there are", "len({e})"),
)
TEXT_STEPS = (
    Step("reverse the text", "{v}[::-1]"),
    Step("write it in capital letters", "{v}.upper()"),
    Step("replace each {c} by {d}", "{v}.replace({c!r}, {d!r})"),
    Step("remove each vowel (a, e, i, o, u)", "''.join(x for x in {e} if x not in 'aeiou')"),
    Step("write it {k} times in a row", "{v} * {k}"),
    Step("drop the first character", "{v}[1:]"),
    Step("put {c} in front", "{c!r} + {v}"),
    Step("put {c} at the end", "{v} + {c!r}"),
    Step("sort its characters", "''.join(sorted({e}))"),
)
KINDS = {
    "numbers": Kind("a whole number", NUMBER_STEPS),
    "lists": Kind("a list of whole numbers", LIST_STEPS, LIST_ENDS),
    "texts": Kind("a text", TEXT_STEPS),
    "lines": Kind("a list of whole numbers", LIST_STEPS, LIST_ENDS, reads_line=True),
}


class GeneratedTask(NamedTuple):
    """A kind and its number of steps."""

    name: str
    kind: str
    num_steps: int

    @classmethod
    def of(cls, name: str) -> "GeneratedTask":
        """Look up `name`, for example `lists-2`.

        Raises:
            ValueError: An unknown kind or number of steps; the message has the known ones.
        """
        kind, _, steps = name.rpartition("-")
        if kind not in KINDS:
            known = [f"{kind}-n" for kind in KINDS]
            raise ValueError(
                f"Unknown sandbox task {name!r}.{nearest(name, known)} "
                f"Known: {listed(name, known)}, for example lists-2."
            )
        if not (steps.isascii() and steps.isdigit() and 1 <= int(steps) <= MAX_STEPS):
            raise ValueError(
                f"Sandbox task {name!r} must end in a number of steps from 1 to {MAX_STEPS}, "
                f"for example {kind}-2."
            )
        return cls(name, kind, int(steps))


class Specification(NamedTuple):
    """Steps in words, and the Python expression in `v` that computes them."""

    words: tuple[str, ...]
    expression: str

    def apply(self, values: Sequence[Any]) -> list[Any]:
        """Results of the correct program for `values`."""
        # an expression from the tables above
        code = compile(self.expression, "specification", "eval")
        return [eval(code, {"v": value}) for value in values]


def draw_row(
    task: GeneratedTask,
    *,
    split: str,
    heldout_share: float,
    num_tests: int,
    wording: str,
    seed: int | None,
) -> PromptRow:
    """Draw the problem of `split` for `seed`, with `num_tests` hidden tests.

    `extra_info` has the correct program.

    Raises:
        ValueError: The split has no problems, or too few for one to be found.
    """
    random = np.random.default_rng(None if seed is None else [seed, zlib.crc32(task.name.encode())])
    for _ in range(MAX_DRAWS):
        specification = _draw(task, random)
        results = specification.apply(_probes(task.kind))
        key = problem_key(task.kind, results)
        if not _is_sound(task.kind, results) or held_out(key, share=heldout_share) != (
            split == "heldout"
        ):
            continue
        values = _distinct_values(task.kind, specification, random, count=num_tests + NUM_EXAMPLES)
        if values is not None:
            return _row(
                task,
                specification,
                values,
                wording=wording,
                extra_info={"key": key, "split": split},
            )
    raise ValueError(
        f"No {split} problem of {task.name!r} in {MAX_DRAWS} draws: heldout_share is "
        f"{heldout_share}."
    )


def problem_key(kind: str, results: Sequence[Any]) -> str:
    """Digest of the results on the probes; equal for problems that compute the same."""
    return hashlib.sha256(json.dumps([KINDS[kind].subject, results]).encode()).hexdigest()


def held_out(key: str, *, share: float) -> bool:
    """Whether a problem is held out; about `share` of all are."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _draw(task: GeneratedTask, random: np.random.Generator) -> Specification:
    kind = KINDS[task.kind]
    words, expression = [], "v"
    for number in range(task.num_steps):
        choices = (*kind.steps, *(kind.last_steps if number == task.num_steps - 1 else ()))
        step = choices[int(random.integers(len(choices)))]
        first, second = random.permutation(26)[:2]
        drawn = {
            "k": int(random.integers(2, 5 if task.kind == "texts" else 10)),
            "c": LETTERS[first],
            "d": LETTERS[second],
        }
        words.append(step.words.format(**drawn))
        expression = step.code.format(
            v=expression if expression == "v" else f"({expression})", e=expression, **drawn
        )
    return Specification(tuple(words), expression)


def _is_sound(kind: str, results: Sequence[Any]) -> bool:
    """Whether a constant and the input itself are both clearly wrong answers."""
    shown = [json.dumps(result) for result in results]
    unchanged = sum(value == result for value, result in zip(_probes(kind), results, strict=True))
    return max(unchanged, *(shown.count(result) for result in shown)) <= NUM_PROBES // 4


@functools.cache
def _probes(kind: str) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    return tuple(_value(kind, random) for _ in range(NUM_PROBES))


def _value(kind: str, random: np.random.Generator) -> Any:
    match kind:
        case "numbers":
            return int(random.integers(-20, 100))
        case "texts":
            return "".join(
                LETTERS[number] for number in random.integers(26, size=int(random.integers(4, 10)))
            )
        case _:
            return [
                int(number) for number in random.integers(-9, 21, size=int(random.integers(4, 9)))
            ]


def _row(
    task: GeneratedTask,
    specification: Specification,
    values: Sequence[Any],
    *,
    wording: str,
    extra_info: dict[str, Any],
) -> PromptRow:
    results, reads_line = specification.apply(values), KINDS[task.kind].reads_line
    if reads_line:
        inputs: list[Any] = [" ".join(map(str, value)) + "\n" for value in values]
        outputs: list[Any] = [_printed(result) + "\n" for result in results]
        examples = [
            f"for the line {given.strip()} it prints {shown.strip()}"
            for given, shown in zip(inputs, outputs, strict=True)
        ]
    else:
        inputs, outputs = [[value] for value in values], results
        examples = [
            f"solve({value!r}) returns {result!r}"
            for value, result in zip(values, results, strict=True)
        ]
    prompt = (
        _bare(task.kind, specification)
        if wording == "bare"
        else _in_words(task.kind, specification, examples[:NUM_EXAMPLES])
    )
    hidden = slice(NUM_EXAMPLES, None)
    return PromptRow(
        data_source=task.name,
        prompt=(message("user", prompt),),
        ground_truth=encoded_tests(
            inputs=inputs[hidden], outputs=outputs[hidden], function=None if reads_line else "solve"
        ),
        style=STYLE,
        ability="code",
        extra_info={**extra_info, "solution": _solution(task.kind, specification, wording)},
    )


def _distinct_values(
    kind: str, specification: Specification, random: np.random.Generator, *, count: int
) -> list[Any] | None:
    """Draws distinct inputs, of which at most a quarter share a result; None if not found."""
    values: list[Any] = []
    results: list[Any] = []
    for _ in range(20 * count):
        value = _value(kind, random)
        (result,) = specification.apply([value])
        if value not in values and results.count(result) < math.ceil(count / 4):
            values.append(value)
            results.append(result)
        if len(values) == count:
            return values
    return None


def _printed(result: Any) -> str:
    return " ".join(map(str, result)) if isinstance(result, list) else str(result)


def _bare(kind: str, specification: Specification) -> str:
    # distinguishes it from the same steps on a list
    given = ("read the line",) if KINDS[kind].reads_line else ()
    return ", then ".join((*given, *specification.words)) + "\n"


def _in_words(kind: str, specification: Specification, examples: Sequence[str]) -> str:
    subject, steps = KINDS[kind].subject, "; then ".join(specification.words)
    if KINDS[kind].reads_line:
        task = (
            f"Write a Python program that reads a line with {subject}, separated by spaces, "
            "does the following and prints the result "
        )
        task += "(a list as numbers separated by spaces)"
    else:
        task = (
            f"Write a Python function solve(v) that takes {subject}, "
            "does the following and returns the result"
        )
    return f"{task}: {steps}. For example, {' and '.join(examples)}. {INSTRUCTION}"


def _solution(kind: str, specification: Specification, wording: str) -> str:
    if KINDS[kind].reads_line:
        program = (
            "v = [int(x) for x in input().split()]\n"
            f"r = {specification.expression}\n"
            "print(*r if isinstance(r, list) else [r])\n"
        )
    elif wording == "bare":
        return f"solve=lambda v:{specification.expression}"
    else:
        program = f"def solve(v):\n    return {specification.expression}\n"
    return program if wording == "bare" else f"```python\n{program}```"
