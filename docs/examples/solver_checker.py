"""Maths for two: a solver answers, a checker accepts the answer or sends it back with a hint.

    solver    12+34=          ->  45
    checker   45? 12+34=      ->  46      another number: sent back, with this number as the hint
    reviser   45,46? 12+34=   ->  46      the last answer counts

A checker that repeats the answer accepts it. The reviser is the solver again: `env.played_by` gives
both roles to one agent group. Each answer is a separate role, because a role is one dialogue, and
GRPO gives all tokens of a dialogue the same advantage: the first answer would be rewarded for the
second. The models are small and write digits only, so a hint is a number; a larger model could
write a sentence.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from envs.base import Environment, Info, StepResult, checked_turns
from envs.math.grading import GRADING_CPU_S, Grader
from envs.math.math_env import asked_row, grade_info, opening_info, question_source
from envs.prompt_rows import PromptRow
from envs.text import REWARD_PARTS, VERDICT, TextObservation, message, observe, text_spec

ROLES = ("solver", "checker", "reviser")
SOLVER, CHECKER, REVISER = range(3)


class SolverChecker(Environment):
    """One question per episode; the last answer counts.

    Solver and reviser each get 1 for their own right answer. The checker gets half of its
    reward for a right last answer, and half for its verdict: accepting a right answer or sending
    back a wrong one.
    """

    def __init__(self, *, tasks: list[str] | None = None, split: str = "train") -> None:
        self._source = question_source(tasks=tasks, files=None, wording="bare", heldout_share=0.15)
        self._split = split
        self._grader = Grader(num_workers=1, cpu_s=GRADING_CPU_S)
        self.spec = text_spec(
            name="solver_checker",
            tasks=self._source.tasks,
            max_turns=len(ROLES),
            max_action_characters=1000,
            num_agents=len(ROLES),
            agent_names=ROLES,
        )
        self._row: PromptRow | None = None
        self._texts: list[str] = []

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """The solver sees the question; the others wait."""
        row = asked_row(options, seed=seed, env=self, source=self._source, split=self._split)
        self._row, self._texts = row, []
        return [observe(row.prompt), None, None], opening_info(row)

    async def step(self, action: Any) -> StepResult:
        """Take the text of the agent whose turn it is."""
        if self._row is None:
            raise RuntimeError(
                "The episode has ended or was never started: call reset before step."
            )
        speaker = len(self._texts)
        self._texts.append(checked_turns(action, acting=[speaker], spec=self.spec)[speaker])
        if speaker == SOLVER or (speaker == CHECKER and not self._accepted):
            return self._pass_on()
        return await self._end()

    @property
    def _accepted(self) -> bool:
        answer, verdict = self._texts[:2]
        return answer.strip() == verdict.strip()

    def _pass_on(self) -> StepResult:
        """The next role sees all texts so far, before the question."""
        assert self._row is not None
        observations: list[TextObservation | None] = [None] * len(ROLES)
        said = ",".join(text.strip() for text in self._texts)
        asked = f"{said}? {self._row.prompt[-1]['content']}"
        observations[len(self._texts)] = observe([message("user", asked)])
        info = {"task": self._row.data_source, "success": False, "agents": [None] * len(ROLES)}
        return observations, np.zeros(len(ROLES)), False, False, info

    async def _end(self) -> StepResult:
        row, self._row = self._row, None
        assert row is not None
        texts = self._texts[SOLVER], self._texts[SOLVER if self._accepted else REVISER]
        first, last = [
            await grade_info(text, row, grader=self._grader, format_reward=0.0) for text in texts
        ]
        right, sound = bool(last["success"]), self._accepted == bool(first["success"])
        checker = {
            "success": sound,
            REWARD_PARTS: {"correct": 0.5 * right, "verdict": 0.5 * sound},
            VERDICT: "accepted" if self._accepted else "sent back",
        }
        # an episode's success is that of the first agent
        agents = [first | {"success": right}, checker, None if self._accepted else last]
        rewards = [sum(agent[REWARD_PARTS].values()) if agent else 0.0 for agent in agents]
        info = {"task": row.data_source, "success": right, "agents": agents}
        return [None] * len(ROLES), cast(Any, np.array(rewards)), True, False, info

    def render(self) -> Any:
        """Raises RuntimeError: there is nothing to see."""
        raise RuntimeError("There are no images.")

    async def close(self) -> None:
        """Give the grader back."""
        self._grader.close()
        self._row = None
