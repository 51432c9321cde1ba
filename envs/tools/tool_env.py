"""ToolEnv: questions as in MathEnv, answered over several turns with tools.

    env = ToolEnv(tasks=["sums-6"], tools=["envs.tools.arithmetic:calculator"])

A turn with calls (`envs.tools.calls`) gets one message of role `tool` per call; a turn without is
the final answer, which is graded and ends the episode. A failed call returns text that begins with
`Error:` to the model. Turns, characters, calls per turn and, with a tokenizer, tokens are bounded.
An exhausted bound gives no reward, and the verdict names it.

Options of reset are those of MathEnv: `task`, `split`, `row`. Left out: several agents.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from numpy.typing import NDArray

from envs.arguments import HELDOUT_SHARE, check_counts, not_running
from envs.base import Environment, EnvSpec, Info, StepResult
from envs.deadlines import checked_deadline
from envs.math.grading import GRADERS, GRADING_CPU_S, Grader
from envs.math.math_env import asked_row, grade_info, opening_info, question_source
from envs.math.question_sources import any_row, can_grade, check_row
from envs.prompt_rows import PromptRow
from envs.text import (
    REWARD_PARTS,
    VERDICT,
    Message,
    ModelText,
    TextObservation,
    checked_text,
    message,
    observe,
    shortened,
    text_spec,
)
from envs.tools.budget import Budget
from envs.tools.calls import MalformedCall, ToolCall, ToolDescription, announcement, read_calls
from envs.tools.named_tools import make_toolsets
from envs.tools.toolset import ToolError, Toolset, ToolsMissing, ToolStopped, two_of_a_name

TOOL_CALL, OUT_OF_TURNS = "tool call", "out of turns"
CALCULATOR = "envs.tools.arithmetic:calculator"
MAX_ACTION_CHARACTERS = 1 << 24
logger = logging.getLogger(__name__)
_warned: set[str] = set()  # names of tools; many environments share a process


class ToolEnv(Environment):
    """Questions with tools, over several turns."""

    asks_questions = True

    def __init__(
        self,
        *,
        tools: Sequence[str | Mapping[str, Any]] = (CALCULATOR,),
        tasks: Sequence[str] | None = None,
        files: Sequence[str] | str | None = None,
        split: str = "train",
        heldout_share: float = HELDOUT_SHARE,
        wording: str = "words",
        announce: bool = True,
        ungraded: bool = False,
        max_turns: int = 6,
        max_characters: int = 32_768,
        max_tokens: int | None = None,
        tokenizer: str | None = None,
        max_calls_per_turn: int = 4,
        max_tool_characters: int = 4_000,
        tool_deadline_s: float = 10.0,
        format_reward: float = 0.0,
        num_graders: int = GRADERS,
        grading_cpu_s: float = GRADING_CPU_S,
    ) -> None:
        """Make the environment; imports functions, starts no process.

        Args:
            tools: See `envs.tools.named_tools`: `module:function`, `{"mcp": {…}}`, `{"program":
                "module:factory", …}`.
            tasks: Generated tasks (`sums-2`), or with `files` the data sources to ask from (all by
                default).
            files: Parquet or jsonl files; see `envs.prompt_files`.
            split: Split that `reset` uses by default, `train` or `heldout`.
            heldout_share: Share of questions that are held out, by a hash of the question; 0: none.
            wording: Form of generated questions, `bare` or `words` (see `MathEnv`); `words` by
                default, because models that call tools chat.
            announce: Whether the system message describes the tools; False for chat templates that
                do, and for tiny models.
            ungraded: Also ask rows that cannot be graded: `success` of their episodes is None.
            max_turns: Turns of the model; the last one must be the final answer.
            max_characters: Bound for all turns of the model and all answers of tools together.
            max_tokens: Bound for those turns and answers in tokens of `tokenizer`, not counting the
                chat template; None: no bound.
            tokenizer: A tokenizer.json, or a folder that holds one.
            max_calls_per_turn: Further calls are refused; its product with `tool_deadline_s` must
                not exceed env.deadline_s.
            max_tool_characters: Bound for one tool's answer; a longer one is cut, with a note.
            tool_deadline_s: Deadline of one call in seconds, unless the tool's entry sets one.
            format_reward: Added if an answer was marked, right or wrong; reward part `format`.
            num_graders: Worker processes of this process's maths environments together.
            grading_cpu_s: Processor time after which a comparison is aborted.

        Raises:
            ValueError: An invalid argument.
        """
        check_counts(
            max_turns=max_turns,
            max_calls_per_turn=max_calls_per_turn,
            max_tool_characters=max_tool_characters,
        )
        checked_deadline("tool_deadline_s", tool_deadline_s)
        self._budget = Budget.of(
            max_characters=max_characters, max_tokens=max_tokens, tokenizer=tokenizer
        )
        self._source = question_source(
            tasks=tasks,
            files=files,
            wording=wording,
            heldout_share=heldout_share,
            ungraded=ungraded,
        )
        self._toolsets = make_toolsets(tools, deadline_s=tool_deadline_s)
        self._owners: dict[str, Toolset] = {}
        self._descriptions: list[ToolDescription] = []
        self._grader = Grader(num_workers=num_graders, cpu_s=grading_cpu_s)
        self._split, self._announce, self._format_reward = split, announce, float(format_reward)
        self._max_calls = max_calls_per_turn
        self._max_tool_characters = max_tool_characters
        self.spec = _spec(
            self._source.tasks,
            self._toolsets,
            max_turns=max_turns,
            max_calls_per_turn=max_calls_per_turn,
            ungraded=ungraded,
        )
        self._row: PromptRow | None = None
        self._turns = 0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[TextObservation, Info]:
        """See `Environment.reset`; options are `task`, `split` and `row`.

        Raises:
            ToolsMissing: The tools are not available.
        """
        row = asked_row(options, seed=seed, env=self, source=self._source, split=self._split)
        self._row = None
        await self._gather_tools()
        for toolset in self._toolsets:
            await toolset.start_episode()
        self._row, self._turns = row, 0
        self._budget.restart()
        messages = _announced(row.prompt, self._descriptions) if self._announce else row.prompt
        return observe(messages), opening_info(row)

    async def step(self, action: Any) -> StepResult:
        """Play one turn of the model: calls, or the final answer.

        Raises:
            ValueError: The action is not text.
            RuntimeError: No question is open.
            EpisodeFailed: The tools are not available (`ToolsMissing`), or the final answer could
                not be graded (`GradingFailed`).
        """
        text = checked_text(action, space=cast(ModelText, self.spec.action_space))
        if self._row is None:
            raise not_running()
        self._turns += 1
        calls = read_calls(text)
        spent = self._budget.spend(text)
        if spent is not None:
            return self._cut_short(spent)
        if not calls:
            return await self._graded(self._row, text)
        if self._turns == self.spec.max_episode_steps:
            return self._cut_short(OUT_OF_TURNS)
        try:
            return await self._called(self._row, calls)
        except ToolsMissing:
            self._row = None  # the episode is over
            raise

    def render(self) -> NDArray[Any]:
        """Raises RuntimeError: the environment has no images."""
        raise RuntimeError("Environment 'tools' has no images.")

    async def close(self) -> None:
        """End tools and graders."""
        self._row = None
        self._grader.close()
        for toolset in self._toolsets:
            await toolset.close()

    async def _gather_tools(self) -> None:
        """Read the descriptions of all toolsets, once."""
        if self._descriptions:
            return
        owners: dict[str, Toolset] = {}
        descriptions = []
        for toolset in self._toolsets:
            for description in await toolset.descriptions():
                if owners.get(description.name) is toolset:
                    raise ValueError(
                        f"Two tools of {toolset.origin} are called {description.name!r}: rename "
                        "one of them there."
                    )
                if description.name in owners:
                    raise ValueError(
                        two_of_a_name(
                            description.name, owners[description.name].origin, toolset.origin
                        )
                    )
                owners[description.name] = toolset
                descriptions.append(description)
        self._owners, self._descriptions = owners, descriptions

    async def _called(
        self, row: PromptRow, calls: Sequence[ToolCall | MalformedCall]
    ) -> StepResult:
        answers, errors = list[Message](), 0
        for number, call in enumerate(calls):
            try:
                if number >= self._max_calls:
                    raise ToolError(f"only {self._max_calls} calls are carried out in one turn")
                answer = self._cut(await self._call(call))
            except ToolError as error:
                answer, errors = self._cut(f"Error: {error}."), errors + 1
            answers.append(message("tool", answer))
        spent = self._budget.spend(*(entry["content"] for entry in answers))
        counts = {"tool_calls": len(calls), "tool_errors": errors}
        if spent is not None:
            return self._cut_short(spent, counts)
        success = False if can_grade(row) else None
        info: Info = {
            "task": row.data_source,
            "success": success,
            REWARD_PARTS: {},
            VERDICT: TOOL_CALL,
            **counts,
        }
        return observe(answers), 0.0, False, False, info

    async def _call(self, call: ToolCall | MalformedCall) -> str:
        if isinstance(call, MalformedCall):
            raise ToolError(f"this is not a tool call: {call.reason}")
        if call.name not in self._owners:
            raise ToolError(
                f"there is no tool {shortened(call.name)}; "
                f"there are: {', '.join(self._owners) or 'none'}"
            )
        try:
            return await self._owners[call.name].call(call.name, call.arguments)
        except ToolStopped as stopped:
            if call.name not in _warned:
                _warned.add(call.name)
                logger.warning(
                    "Tool %r: %s. The model reads this as an error; further such calls of the tool "
                    "are not shown (env.kwargs.tool_deadline_s, info['tool_errors']).",
                    call.name,
                    stopped,
                )
            raise

    async def _graded(self, row: PromptRow, text: str) -> StepResult:
        self._row = None
        info = await grade_info(text, row, grader=self._grader, format_reward=self._format_reward)
        reward = float(sum(info[REWARD_PARTS].values()))
        return (
            observe(),
            reward,
            True,
            False,
            {"task": row.data_source, **info, "tool_calls": 0, "tool_errors": 0},
        )

    def _cut_short(self, verdict: str, counts: Mapping[str, int] | None = None) -> StepResult:
        assert self._row is not None
        row, self._row = self._row, None
        graded = (
            {"success": False, REWARD_PARTS: {"correct": 0.0}}
            if can_grade(row)
            else {"success": None, REWARD_PARTS: {}}
        )
        counts = counts or {"tool_calls": 0, "tool_errors": 0}
        return (
            observe(),
            0.0,
            False,
            True,
            {"task": row.data_source, **graded, VERDICT: verdict, **counts},
        )

    def _cut(self, answer: str) -> str:
        left_out = len(answer) - self._max_tool_characters
        return (
            answer
            if left_out <= 0
            else f"{answer[: self._max_tool_characters]}… ({left_out} more characters)"
        )


def _spec(
    tasks: Sequence[str],
    toolsets: Sequence[Toolset],
    *,
    max_turns: int,
    max_calls_per_turn: int,
    ungraded: bool,
) -> EnvSpec:
    """The spec: a step waits for all calls of a turn, and a tool may have outside state."""
    slowest_call_s = max((toolset.deadline_s for toolset in toolsets), default=0.0)
    return text_spec(
        name="tools",
        tasks=tasks,
        max_turns=max_turns,
        max_action_characters=MAX_ACTION_CHARACTERS,
        replayable=all(toolset.replayable for toolset in toolsets),
        check_row=any_row if ungraded else check_row,
        leaves_ungraded=ungraded,
        slowest_step_s=max_calls_per_turn * slowest_call_s,
    )


def _announced(prompt: Sequence[Message], tools: Sequence[ToolDescription]) -> list[Message]:
    """`prompt` with the tools in its system message."""
    if not tools:
        return list(prompt)
    if prompt[0]["role"] == "system":
        return [message("system", f"{prompt[0]['content']}\n\n{announcement(tools)}"), *prompt[1:]]
    return [message("system", announcement(tools)), *prompt]
