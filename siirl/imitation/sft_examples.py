"""Target responses for the questions of our environments: the examples of an SFT warm start.

Maths: the answer. Sandbox: a correct program. Tools: a call of the calculator, its result, then the
answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.arguments import HELDOUT_SHARE
from envs.math.math_env import DEFAULT_TASKS as MATHS_TASKS
from envs.math.math_env import question_source
from envs.prompt_rows import PromptRow, require_truth
from envs.sandbox import generator as programs
from envs.sandbox.problems import STYLE as CODE
from envs.sandbox.sandbox_env import DEFAULT_TASKS as SANDBOX_TASKS
from envs.text import Message, message
from envs.tools.arithmetic import calculator
from envs.tools.calls import ToolCall, write_call
from siirl.errors import ConfigError
from siirl.models.chat import ChatTokenizer
from siirl.params import EnvArguments

DrawRow = Callable[[str, str, int], PromptRow]
"""Draws the question of (task, split, seed)."""
Respond = Callable[[PromptRow], list[Message]]
"""Returns all messages after the prompt of a question."""
EXPRESSION = re.compile(r"\d[\d\s+*/()-]*\d|\d")  # digits and the operators between them


@dataclass(frozen=True)
class Example:
    """A prompt and its completion, in tokens."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    """Tokens of all turns, including their end tokens."""
    loss_mask: tuple[bool, ...]
    """True at the model's own tokens."""


@dataclass(frozen=True)
class SftSource:
    """Questions of a configuration's environment, and their target responses."""

    tasks: tuple[str, ...]
    draw_row: DrawRow
    respond: Respond


def sft_source(env: EnvArguments) -> SftSource:
    """SFT examples of an environment.

    Raises:
        ConfigError: No target responses exist for the environment or one of its arguments.
    """
    if env.name not in SFT_SOURCES:
        raise ConfigError(
            f"env={env.name} has no target responses; a warm start on answers supports "
            f"{', '.join(SFT_SOURCES)}."
        )
    try:
        return SFT_SOURCES[env.name](env)
    except ValueError as error:
        raise ConfigError(f"env={env.name}: {error}") from error


def make_example(row: PromptRow, respond: Respond, tokenizer: ChatTokenizer) -> Example:
    """Tokenize a question and its response in the format of a rollout."""
    completion: list[int] = []
    loss_mask: list[bool] = []
    for entry in respond(row):
        mine = entry["role"] == "assistant"
        tokens = (
            (*tokenizer.encode_text(entry["content"]), tokenizer.end_id)
            if mine
            else tokenizer.encode_turn([entry])
        )
        completion += tokens
        loss_mask += [mine] * len(tokens)
    return Example(
        prompt=tokenizer.encode_prompt(row.prompt),
        completion=tuple(completion),
        loss_mask=tuple(loss_mask),
    )


def answer_at_once(row: PromptRow) -> list[Message]:
    """The answer, in the form in which it is checked."""
    return [message("assistant", write_answer(row))]


def ask_calculator(row: PromptRow) -> list[Message]:
    """A calculator call with the arithmetic in the question, its result, and the answer.

    Raises:
        ConfigError: The result is not the question's answer.
    """
    found = max(EXPRESSION.findall(row.prompt[-1]["content"]), key=len, default="0")
    found_value = calculator(found)
    if found_value != row.ground_truth:
        raise ConfigError(
            f"One call of the calculator does not answer {row.prompt[-1]['content']!r} of the task "
            f"{row.data_source!r}: choose sums-n."
        )
    call = write_call(ToolCall("calculator", {"expression": found}))
    return [
        message("assistant", call),
        message("tool", found_value),
        message("assistant", write_answer(row)),
    ]


def write_answer(row: PromptRow) -> str:
    """The text of a correct answer.

    Raises:
        ConfigError: The row defines how an answer is checked, but does not contain a correct
            answer.
    """
    match row.style:
        case "whole":
            return require_truth(row.ground_truth)
        case "rule":
            return f"#### {row.ground_truth}"
        case style if style in (CODE, "countdown") and "solution" in row.extra_info:
            return str(row.extra_info["solution"])
        case _:
            raise ConfigError(
                f"Questions of {row.data_source!r} are checked by the style {row.style!r}, which "
                "contains no answer to learn from: choose tasks whose ground truth is the answer "
                "(sums-n, sorting-n, word-sums-n, files of GSM8K's form), or rows with "
                "extra_info.solution."
            )


def _maths(env: EnvArguments) -> SftSource:
    return _questions(env, wording="bare", respond=answer_at_once)


def _tools(env: EnvArguments) -> SftSource:
    if env.kwargs.get("announce", True):
        raise ValueError(
            "warm-start prompts do not describe tools: set env.kwargs.announce=false, also in "
            "training."
        )
    return _questions(env, wording="words", respond=ask_calculator)


def _questions(env: EnvArguments, *, wording: str, respond: Respond) -> SftSource:
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
    return SftSource(
        source.tasks, lambda task, split, seed: source.draw(task, split=split, seed=seed), respond
    )


def _sandbox(env: EnvArguments) -> SftSource:
    settings: Mapping[str, Any] = {
        "wording": "words",
        "heldout_share": 0.1,
        "num_tests": 10,
        **env.kwargs,
    }
    tasks: Sequence[str] = env.tasks or SANDBOX_TASKS
    if settings.get("files"):
        raise ValueError(
            "problems in files contain no correct programs to learn from: leave env.kwargs.files "
            "out."
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

    return SftSource(tuple(tasks), draw_row, answer_at_once)


SFT_SOURCES: dict[str, Callable[[EnvArguments], SftSource]] = {
    "math": _maths,
    "tools": _tools,
    "sandbox": _sandbox,
}
"""Environments with target responses."""
