"""Maths for two: a solver answers, a checker accepts the answer or sends it back with a hint.

    solver    12+34=          ->  45
    checker   45? 12+34=      ->  46      another number: sent back, with this number as the hint
    solver    46? 12+34=      ->  46      the second answer counts

A checker that repeats the answer accepts it. Both are small language models that know digits only, so
a hint is a number; a larger model could write a sentence here.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.base import Environment, Info, StepResult, checked_turns
from envs.math.grading import GRADING_CPU_S, Grader
from envs.math.math_env import asked_row, grade_info, opening_info, question_source
from envs.prompt_files import PromptRow
from envs.text import REWARD_PARTS, VERDICT, TextObservation, message, observe, text_spec

SOLVER, CHECKER = 0, 1
MAX_TURNS = 3
"""Of both: an answer, a verdict, and a second answer."""


class SolverChecker(Environment):
    """One question an episode; the last answer counts.

    The solver gets 1 for a right last answer. The checker gets half of its reward for that, and half
    for its verdict: accepting a right answer or sending back a wrong one.
    """

    def __init__(self, *, tasks: list[str] | None = None, split: str = "train") -> None:
        self._source = question_source(tasks=tasks, files=None, wording="bare", heldout_share=0.15)
        self._split = split
        self._grader = Grader(num_workers=1, cpu_s=GRADING_CPU_S)
        self.spec = text_spec(
            name="solver_checker",
            tasks=self._source.tasks,
            max_turns=MAX_TURNS,
            max_action_characters=1000,
            num_agents=2,
            agent_names=("solver", "checker"),
        )
        self._row: PromptRow | None = None
        self._texts: list[str] = []

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """The solver sees the question; the checker waits."""
        row = asked_row(options, seed=seed, env=self, source=self._source, split=self._split)
        self._row, self._texts = row, []
        return [observe(row.prompt), None], opening_info(row)

    async def step(self, action: Any) -> StepResult:
        """Take the text of the agent whose turn it is."""
        if self._row is None:
            raise RuntimeError(
                "The episode has ended or was never started: call reset before step."
            )
        speaker = CHECKER if len(self._texts) == 1 else SOLVER
        self._texts.append(checked_turns(action, acting=[speaker], spec=self.spec)[speaker])
        if len(self._texts) == 1:
            return self._pass_to(CHECKER)
        if len(self._texts) == 2 and not self._accepted:
            return self._pass_to(SOLVER)
        return await self._end()

    @property
    def _accepted(self) -> bool:
        answer, verdict = self._texts[:2]
        return answer.strip() == verdict.strip()

    def _pass_to(self, agent: int) -> StepResult:
        """The last text goes to `agent`, before the question."""
        assert self._row is not None
        observations: list[TextObservation | None] = [None, None]
        asked = f"{self._texts[-1].strip()}? {self._row.prompt[-1]['content']}"
        observations[agent] = observe([message("user", asked)])
        info = {"task": self._row.data_source, "success": False, "agents": [None, None]}
        return observations, self._rewards(0.0, 0.0), False, False, info

    async def _end(self) -> StepResult:
        row, self._row = self._row, None
        assert row is not None
        answers = {self._texts[0], self._texts[-1]}
        found = {
            text: await grade_info(text, row, grader=self._grader, format_reward=0.0)
            for text in answers
        }
        solver = found[self._texts[0] if self._accepted else self._texts[-1]]
        right = bool(solver["success"])
        sound = self._accepted == bool(found[self._texts[0]]["success"])
        parts = {"correct": 0.5 * right, "verdict": 0.5 * sound}
        checker = {
            "success": sound,
            REWARD_PARTS: parts,
            VERDICT: "accepted" if self._accepted else "sent back",
        }
        info = {"task": row.data_source, "success": right, "agents": [solver, checker]}
        rewards = self._rewards(float(right), sum(parts.values()))
        return [None, None], rewards, True, False, info

    @staticmethod
    def _rewards(solver: float, checker: float) -> Any:
        return np.array([solver, checker])

    def render(self) -> Any:
        """Raises RuntimeError: there is nothing to see."""
        raise RuntimeError("There are no images.")

    async def close(self) -> None:
        """Give the grader back."""
        self._grader.close()
        self._row = None
