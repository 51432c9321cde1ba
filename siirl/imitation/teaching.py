"""What a model would say that knows the answer, for the questions that our environments make up:
the material of a warm start.

In maths the answer itself, in the sandbox the right program, and with tools a call of the
calculator, what it says, and then the answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.math.environment import DEFAULT_TASKS as MATHS_TASKS
from envs.math.environment import HELDOUT_SHARE, question_source
from envs.prompt_files import PromptRow, require_truth
from envs.sandbox import generator as programs
from envs.sandbox.environment import DEFAULT_TASKS as SANDBOX_TASKS
from envs.sandbox.problems import STYLE as CODE
from envs.text import Message, message
from envs.tools.arithmetic import calculator
from envs.tools.calls import ToolCall, write_call
from siirl.errors import ConfigError
from siirl.models.chat import ChatTokenizer
from siirl.params import EnvArguments

DrawRow = Callable[[str, str, int], PromptRow]
"""The question of (task, split, seed)."""
Say = Callable[[PromptRow], list[Message]]
"""Everything that is said after the prompt of a question."""
EXPRESSION = re.compile(r"\d[\d\s+*/()-]*\d|\d")  # digits, and what stands between them


@dataclass(frozen=True)
class Example:
    """A prompt and what is said to it."""

    prompt: tuple[int, ...]
    said: tuple[int, ...]
    """Tokens of all turns, the one that ends each included."""
    own: tuple[bool, ...]
    """Which of them are the model's own."""


@dataclass(frozen=True)
class Lessons:
    """The questions of a configuration's environment, and how they are answered."""

    tasks: tuple[str, ...]
    draw_row: DrawRow
    say: Say


def lessons_of(env: EnvArguments) -> Lessons:
    """What can be taught for an environment.

    Raises:
        ConfigError: An environment or an argument for which nobody knows what to say.
    """
    if env.name not in LESSONS:
        raise ConfigError(
            f"env={env.name}: nobody knows what to say there; a warm start on answers is for {', '.join(LESSONS)}."
        )
    try:
        return LESSONS[env.name](env)
    except ValueError as error:
        raise ConfigError(f"env={env.name}: {error}") from error


def example_of(row: PromptRow, say: Say, tokenizer: ChatTokenizer) -> Example:
    """A question and its answer as tokens, as a rollout would have them."""
    said: list[int] = []
    own: list[bool] = []
    for entry in say(row):
        mine = entry["role"] == "assistant"
        tokens = (
            (*tokenizer.encode_text(entry["content"]), tokenizer.end_id)
            if mine
            else tokenizer.encode_turn([entry])
        )
        said += tokens
        own += [mine] * len(tokens)
    return Example(prompt=tokenizer.encode_prompt(row.prompt), said=tuple(said), own=tuple(own))


def answer_at_once(row: PromptRow) -> list[Message]:
    """The answer, in the form in which it is checked."""
    return [message("assistant", write_answer(row))]


def ask_calculator(row: PromptRow) -> list[Message]:
    """A call of the calculator with the arithmetic that stands in the question, its result, and the
    answer.

    Raises:
        ConfigError: A question to which that is not the answer.
    """
    found = max(EXPRESSION.findall(row.prompt[-1]["content"]), key=len, default="0")
    found_value = calculator(found)
    if found_value != row.ground_truth:
        raise ConfigError(
            f"One call of the calculator does not answer {row.prompt[-1]['content']!r} of the task {row.data_source!r}: take sums-n."
        )
    call = write_call(ToolCall("calculator", {"expression": found}))
    return [
        message("assistant", call),
        message("tool", found_value),
        message("assistant", write_answer(row)),
    ]


def write_answer(row: PromptRow) -> str:
    """The text of a right answer.

    Raises:
        ConfigError: The row says how an answer is checked, but not what a right one is.
    """
    match row.style:
        case "whole":
            return require_truth(row.ground_truth)
        case "rule":
            return f"#### {row.ground_truth}"
        case style if style == CODE and "solution" in row.extra_info:
            return str(row.extra_info["solution"])
        case _:
            raise ConfigError(
                f"Questions of {row.data_source!r} are checked by the style {row.style!r}, which names no answer to learn from: take tasks "
                "whose ground truth is the answer (sums-n, modular-n, word-sums-n, files of GSM8K's form)."
            )


def _maths(env: EnvArguments) -> Lessons:
    return _questions(env, wording="bare", say=answer_at_once)


def _tools(env: EnvArguments) -> Lessons:
    if env.kwargs.get("announce", True):
        raise ValueError(
            "a warm start describes no tools in the prompt: set env.kwargs.announce=false, in training too."
        )
    return _questions(env, wording="words", say=ask_calculator)


def _questions(env: EnvArguments, *, wording: str, say: Say) -> Lessons:
    settings: Mapping[str, Any] = {
        "files": None,
        "wording": wording,
        "heldout_share": HELDOUT_SHARE,
        **env.kwargs,
    }
    source = question_source(
        tasks=env.tasks or MATHS_TASKS,
        files=settings["files"],
        wording=settings["wording"],
        heldout_share=settings["heldout_share"],
    )
    return Lessons(
        source.tasks, lambda task, split, seed: source.draw(task, split=split, seed=seed), say
    )


def _sandbox(env: EnvArguments) -> Lessons:
    settings: Mapping[str, Any] = {
        "wording": "words",
        "heldout_share": 0.1,
        "num_tests": 10,
        **env.kwargs,
    }
    tasks: Sequence[str] = env.tasks or SANDBOX_TASKS
    if settings.get("files"):
        raise ValueError(
            "problems in files come without right programs to learn from: leave env.kwargs.files out."
        )
    generators = {task: programs.GeneratedTask.of(task) for task in tasks}

    def draw_row(task: str, split: str, seed: int) -> PromptRow:
        return programs.draw_row(
            generators[task],
            split=split,
            heldout_share=settings["heldout_share"],
            num_tests=settings["num_tests"],
            wording=settings["wording"],
            seed=seed,
        )

    return Lessons(tuple(tasks), draw_row, answer_at_once)


LESSONS: dict[str, Callable[[EnvArguments], Lessons]] = {
    "math": _maths,
    "tools": _tools,
    "sandbox": _sandbox,
}
"""Environments whose questions we can answer."""
