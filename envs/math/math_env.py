r"""MathEnv: asks one question, gets one answer from each agent, and grades it.

    env = MathEnv(tasks=["sums-2"])                       # generated: "12+34=" and "46"
    # rows with the prompt columns, or GSM8K's jsonl
    env = MathEnv(files=["train.parquet"])
    observation, info = await env.reset(seed=7, options={"split": "heldout"})
    observation, reward, terminated, truncated, info = await env.step("… #### 46")

Options of reset: `task`, `split` (`train` or `heldout`), and `row`, a whole row in the form of the
prompt columns, for a separate data loader. The reward is 1 for a right answer and 0 for a wrong
one, plus `format_reward` if an answer was marked. With several agents every value exists
once per agent, and they answer the same question without seeing each other's answers.

An answer that the grader cannot decide raises `GradingFailed`: that episode is a counted failure. A
row without a truth, or one that needs a judge (`reward_model.style` is not in
`envs.math.grading.STYLES`), is refused, unless `ungraded` leaves the verdict to the caller; the
question is then asked without a verdict. Left out: further turns (`envs.tools`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from envs.arguments import (
    HELDOUT_SHARE,
    check_counts,
    check_heldout_share,
    checked_choice,
    checked_seed,
    checked_tasks,
    not_running,
    read_options,
)
from envs.base import Environment, Info, StepResult
from envs.math.generators import SPLITS
from envs.math.grading import GRADERS, GRADING_CPU_S, Grader, check_truth
from envs.math.question_sources import (
    FileQuestions,
    GeneratedQuestions,
    QuestionSource,
    any_row,
    can_grade,
    check_row,
)
from envs.prompt_rows import PromptRow
from envs.text import (
    GRADED,
    GROUND_TRUTH,
    REWARD_PARTS,
    VERDICT,
    ModelText,
    TextObservation,
    checked_text,
    observe,
    text_spec,
)

DEFAULT_TASKS = ("sums-2",)
NOT_GRADED = "not graded"  # shown in place of a verdict
MAX_ACTION_CHARACTERS = 1 << 24  # far above any model's turn; grading time is linear in it


class MathEnv(Environment):
    """Questions with a checkable answer. Instances are light: thousands fit into one process and
    share its graders.
    """

    asks_questions = True

    def __init__(
        self,
        *,
        tasks: Sequence[str] | None = None,
        files: Sequence[str] | str | None = None,
        split: str = "train",
        heldout_share: float = HELDOUT_SHARE,
        wording: str = "bare",
        num_agents: int = 1,
        ungraded: bool = False,
        format_reward: float = 0.0,
        num_graders: int = GRADERS,
        grading_cpu_s: float = GRADING_CPU_S,
        max_action_characters: int = MAX_ACTION_CHARACTERS,
    ) -> None:
        """Make the environment; reads the index of `files`, starts nothing.

        Args:
            tasks: Generated tasks (`sums-2`, see `envs.math.generators`), or with `files` the data
                sources to ask from (all by default).
            files: Parquet or jsonl files; see `envs.prompt_files`.
            split: Split that `reset` uses by default, `train` or `heldout`.
            heldout_share: Share of questions that are held out, by a hash of the question; 0: none.
            wording: Form of generated questions: `bare` (`12+34=`, the whole text is the answer) or
                `words` (the answer is marked).
            num_agents: Agents that answer each question.
            ungraded: Also ask rows that cannot be graded: `success` of their episodes is None.
            format_reward: Added if an answer was marked, right or wrong; reward part `format`.
            num_graders: Worker processes of this process's maths environments together.
            grading_cpu_s: Processor time after which a comparison is aborted.
            max_action_characters: Longest text of an agent; longer ones are refused.

        Raises:
            ValueError: An invalid argument or file.
            FileNotFoundError: A missing file.
        """
        check_heldout_share(heldout_share)
        check_counts(num_agents=num_agents)
        self._split = checked_choice("split", split, SPLITS)
        self._source = question_source(
            tasks=tasks,
            files=files,
            wording=wording,
            heldout_share=heldout_share,
            ungraded=ungraded,
        )
        self._grader = Grader(num_workers=num_graders, cpu_s=grading_cpu_s)
        self._format_reward = float(format_reward)
        self.spec = text_spec(
            name="math",
            tasks=self._source.tasks,
            max_turns=1,
            max_action_characters=max_action_characters,
            num_agents=num_agents,
            check_row=any_row if ungraded else check_row,
            leaves_ungraded=ungraded,
        )
        self._row: PromptRow | None = None

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """See `Environment.reset`; options are `task`, `split` and `row`. The info is that of
        `opening_info`.
        """
        row = asked_row(options, seed=seed, env=self, source=self._source, split=self._split)
        self._row = row
        observations: list[TextObservation] = [
            observe(row.prompt) for _ in range(self.spec.num_agents)
        ]
        return observations if self.spec.num_agents > 1 else observations[0], opening_info(row)

    async def step(self, action: Any) -> StepResult:
        """Grade the text, or the list of texts, one per agent; ends the episode.

        Raises:
            ValueError: No text, or not one per agent.
            RuntimeError: No question is open.
            GradingFailed: An answer could not be graded; the episode is over.
        """
        texts = self._checked_texts(action)
        if self._row is None:
            raise not_running()
        row, self._row = self._row, None
        grades = [
            grade_info(text, row, grader=self._grader, format_reward=self._format_reward)
            for text in texts
        ]
        # awaited directly: a task would cost as much as comparing two numbers
        agents = [await grades[0]] if len(grades) == 1 else await asyncio.gather(*grades)
        rewards = [float(sum(info[REWARD_PARTS].values())) for info in agents]
        if self.spec.num_agents == 1:
            return observe(), rewards[0], True, False, {"task": row.data_source, **agents[0]}
        success = all(info["success"] for info in agents) if can_grade(row) else None
        merged: Info = {"task": row.data_source, "success": success, "agents": agents}
        return [observe() for _ in agents], cast(Any, np.asarray(rewards)), True, False, merged

    def render(self) -> NDArray[np.uint8]:
        """Raises RuntimeError: there is no image."""
        raise RuntimeError("Environment 'math' has no images.")

    async def close(self) -> None:
        """Release the graders."""
        self._grader.close()
        self._row = None

    def _checked_texts(self, action: Any) -> list[str]:
        space = cast(ModelText, self.spec.action_space)
        if self.spec.num_agents == 1:
            return [checked_text(action, space=space)]
        if not isinstance(action, (list, tuple)) or len(action) != self.spec.num_agents:
            raise ValueError(
                f"step needs a list of {self.spec.num_agents} texts, one per agent, got "
                f"{type(action).__name__}."
            )
        return [checked_text(entry, space=space) for entry in action]


def question_source(
    *,
    tasks: Sequence[str] | None,
    files: Sequence[str] | str | None,
    wording: str,
    heldout_share: float,
    ungraded: bool = False,
) -> QuestionSource:
    """The source of questions: `files` if given, generators otherwise."""
    asked = None if tasks is None else checked_tasks(tasks)
    if files:
        files = [files] if isinstance(files, str) else files
        return FileQuestions(files, tasks=asked, heldout_share=heldout_share, ungraded=ungraded)
    return GeneratedQuestions(asked or DEFAULT_TASKS, wording=wording, heldout_share=heldout_share)


def asked_row(
    options: Mapping[str, Any] | None,
    *,
    seed: int | None,
    env: Environment,
    source: QuestionSource,
    split: str,
) -> PromptRow:
    """The row for a reset: the one in `options`, or the one that the seed selects.

    Raises:
        ValueError: An unknown option, task or split, an invalid row, or one that
            `env.spec.check_row` refuses.
    """
    options = options or {}
    seed = checked_seed(seed)
    task = read_options(options, spec=env.spec, further=("split", "row")).task
    split = checked_choice("split", options.get("split", split), SPLITS)
    if options.get("row") is None:
        drawn = source.draw(task, split=split, seed=seed)
        if drawn.images:
            raise ValueError(
                f"The question drawn for seed {seed} has pictures, which an environment cannot "
                "pass on: name its file in data.train_files or data.val_files instead of "
                "env.kwargs.files."
            )
        return drawn
    if not isinstance(options["row"], Mapping):
        raise ValueError(
            "The option 'row' must be a row with the prompt columns, got "
            f"{type(options['row']).__name__}."
        )
    try:
        row = PromptRow.of(options["row"])
        if env.spec.check_row is not None:
            env.spec.check_row(row)
    except ValueError as error:
        raise ValueError(f"The option 'row' cannot be used: {error}.") from error
    return row


def opening_info(row: PromptRow) -> Info:
    """The info of reset: the question's source, its truth, and whether an answer can be graded
    against it.
    """
    return {
        "task": row.data_source,
        "data_source": row.data_source,
        GROUND_TRUTH: row.ground_truth,
        GRADED: can_grade(row),
    }


async def grade_info(text: str, row: PromptRow, *, grader: Grader, format_reward: float) -> Info:
    """The `info` of a step for one text: its grade, or, if the row cannot be graded,
    `ungraded_info`.

    Raises:
        GradingFailed: The answer could not be graded.
    """
    if not can_grade(row):
        return ungraded_info()
    question = "\n".join(entry["content"] for entry in row.prompt)
    grade = await grader.grade(
        text,
        truth=check_truth(row.ground_truth, style=row.style),
        style=row.style,
        question=question,
    )
    parts = {"correct": 1.0 if grade.correct else 0.0}
    if format_reward:
        parts["format"] = format_reward if grade.answer is not None and grade.marked else 0.0
    return {
        "success": grade.correct,
        REWARD_PARTS: parts,
        VERDICT: grade.verdict,
        "answer": grade.answer,
    }


def ungraded_info() -> Info:
    """The info of a step that the environment cannot grade."""
    return {"success": None, REWARD_PARTS: {}, VERDICT: NOT_GRADED, "answer": None}
