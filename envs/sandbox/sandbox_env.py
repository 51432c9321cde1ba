"""SandboxEnv: the model writes a program, which is run on hidden tests; one turn per episode.

The tests' inputs go into the sandbox; the expected outputs stay here (`envs.sandbox.scoring`). If
the sandbox fails (and not the program), the episode raises `EpisodeFailed`: it is counted, but
never scored.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, Protocol, get_args

from envs.arguments import (
    check_heldout_share,
    checked_choice,
    checked_seed,
    checked_tasks,
    not_running,
    read_options,
)
from envs.base import Environment, EpisodeFailed, Info, StepResult
from envs.prompt_rows import PromptRow
from envs.sandbox.generator import SPLITS, WORDINGS, GeneratedTask, draw_row
from envs.sandbox.isolation import Bubblewrap, NoIsolation
from envs.sandbox.limits import Limits, Sandbox, SandboxFailed
from envs.sandbox.local import LocalSandbox
from envs.sandbox.probe import check_isolation
from envs.sandbox.problem_files import FileProblems
from envs.sandbox.problems import Problem
from envs.sandbox.remote import RemoteSandbox
from envs.sandbox.scoring import REWARDS, judge, program_of, score
from envs.text import REWARD_PARTS, VERDICT, TextObservation, checked_text, observe, text_spec

logger = logging.getLogger(__name__)

IsolationName = Literal["bubblewrap", "remote", "none"]
ISOLATIONS: tuple[str, ...] = get_args(IsolationName)
DEFAULT_TASKS = ("numbers-2", "lists-2", "texts-2", "lines-2")
INSTALL = (
    "Install it (Debian, Ubuntu: apt-get install bubblewrap), "
    "or run where user namespaces are allowed"
)
ALTERNATIVES = (
    "env.isolation=remote with env.kwargs.url uses a sandbox elsewhere; "
    "env.isolation=none runs programs unprotected, as you"
)


class ProblemSource(Protocol):
    """A source of problems."""

    tasks: tuple[str, ...]

    def draw(self, task: str, *, split: str, seed: int | None) -> Problem:
        """Return the problem of `task` and `split` for `seed`; a random one without a seed."""


class SandboxEnv(Environment):
    """Programming problems by seed, from generators or files, or by `options={"row": …}`."""

    asks_questions = True

    def __init__(
        self,
        tasks: Sequence[str] | None = None,
        files: Sequence[str] | str = (),
        split: str = "train",
        isolation: str = "bubblewrap",
        url: str | None = None,
        packages: Sequence[str] = (),
        limits: Mapping[str, Any] | None = None,
        reward: str = "all",
        num_tests: int = 10,
        wording: str = "words",
        heldout_share: float = 0.1,
        max_action_characters: int = 20_000,
    ) -> None:
        """Build the sandbox and test its isolation.

        Args:
            tasks: Generators such as `lists-2` (see `envs.sandbox.generator`), or, with `files`,
                values of `data_source`; all by default.
            files: Problems to draw from instead of generators (see `envs.sandbox.problem_files`).
            split: Default split of `reset`, `train` or `heldout`.
            isolation: `bubblewrap`; `remote` (a service at `url`); or `none`, which protects
                nothing.
            url: Address of a SandboxFusion service, for `remote`.
            packages: Packages that programs may import besides the standard library, such as
                `numpy`.
            limits: Limits of programs, by name (see `envs.sandbox.limits.Limits`).
            reward: `all` (1 if every test is passed, as judges score) or `share` (of tests, above
                the best constant).
            num_tests: Hidden tests of a generated problem. With ten, a program that is right for
                half of all inputs passes once in 1000 times.
            wording: `words`, or `bare` for small models (generators only).
            heldout_share: Share of held-out problems.
            max_action_characters: Longest answer; competition programs need a tenth of the default.

        Raises:
            ValueError: An invalid argument.
            RuntimeError: Isolation is not possible on this machine.
        """
        self._reward = checked_choice("reward", reward, REWARDS)
        self._split = checked_choice("split", split, SPLITS)
        checked_choice("isolation", isolation, ISOLATIONS)
        self._source = problem_source(
            tasks=tasks,
            files=files,
            wording=wording,
            heldout_share=heldout_share,
            num_tests=num_tests,
        )
        self._sandbox = make_sandbox(
            isolation, url=url, packages=tuple(packages), limits=Limits.of(limits)
        )
        self.spec = text_spec(
            name="sandbox",
            tasks=self._source.tasks,
            max_turns=1,
            max_action_characters=max_action_characters,
            check_row=Problem.of,
        )
        self._problem: Problem | None = None

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[TextObservation, Info]:
        """See `Environment.reset`; options: `task`, `split`, and `row` (prompt columns)."""
        options = options or {}
        task = read_options(options, spec=self.spec, further=("split", "row")).task
        split = checked_choice("split", options.get("split", self._split), SPLITS)
        seed, self._problem = checked_seed(seed), None
        given = options.get("row")
        problem = (
            self._source.draw(task, split=split, seed=seed)
            if given is None
            else Problem.of(PromptRow.of(given))
        )
        self._problem = problem
        return observe(problem.row.prompt), {**_origin(problem), "num_tests": len(problem.cases)}

    async def step(self, action: Any) -> StepResult:
        """See `Environment.step`; the action is the model's only answer of the episode.

        Raises:
            EpisodeFailed: The sandbox could not run the program.
        """
        text = checked_text(action, space=self.spec.action_space)  # type: ignore[arg-type]
        if self._problem is None:
            raise not_running()
        problem, self._problem = self._problem, None
        try:
            verdict = await judge(
                self._sandbox, problem, program_of(text), stop_early=self._reward == "all"
            )
        except SandboxFailed as failed:
            raise EpisodeFailed(str(failed)) from failed
        reward = score(verdict, problem, self._reward)
        info: Info = {
            **_origin(problem),
            "success": verdict.success,
            REWARD_PARTS: {"tests": reward},
            VERDICT: verdict.sentence,
            "tests_passed": verdict.passed,
            "endings": list(verdict.endings),
            "errors": verdict.errors,
        }
        return observe(), reward, True, False, info

    def render(self) -> NoReturn:
        """Raises RuntimeError: the environment has no images."""
        raise RuntimeError("Environment 'sandbox' has no images.")

    async def close(self) -> None:
        """Release the sandbox."""
        self._problem = None
        self._sandbox.close()


class GeneratedProblems:
    """Problems from `envs.sandbox.generator`."""

    def __init__(
        self, tasks: Sequence[str], *, wording: str, heldout_share: float, num_tests: int
    ) -> None:
        self._tasks = {name: GeneratedTask.of(name) for name in tasks}
        self.tasks = tuple(self._tasks)
        self._wording = wording
        self._heldout_share = heldout_share
        self._num_tests = num_tests

    def draw(self, task: str, *, split: str, seed: int | None) -> Problem:
        """See `ProblemSource.draw`."""
        row = draw_row(
            self._tasks[task],
            split=split,
            heldout_share=self._heldout_share,
            num_tests=self._num_tests,
            wording=self._wording,
            seed=seed,
        )
        return Problem.of(row)


def problem_source(
    *,
    tasks: Sequence[str] | None,
    files: Sequence[str] | str,
    wording: str,
    heldout_share: float,
    num_tests: int,
) -> ProblemSource:
    """The source of problems: `files` if given, generators otherwise.

    Raises:
        ValueError: An invalid argument.
    """
    checked_choice("wording", wording, WORDINGS)
    check_heldout_share(heldout_share)
    if num_tests < 4:
        raise ValueError(
            "env.kwargs.num_tests must be at least 4, or wrong programs pass by chance too often; "
            f"got {num_tests}."
        )
    asked = None if tasks is None else checked_tasks(tasks)
    if files:
        paths = [files] if isinstance(files, str) else files
        return FileProblems(paths, tasks=asked, heldout_share=heldout_share)
    return GeneratedProblems(
        asked or DEFAULT_TASKS, wording=wording, heldout_share=heldout_share, num_tests=num_tests
    )


def make_sandbox(
    isolation: str, *, limits: Limits, url: str | None = None, packages: tuple[str, ...] = ()
) -> Sandbox:
    """Make the sandbox for `isolation`; bubblewrap is tested at its first use.

    Raises:
        ValueError: A `url` without `remote` or the reverse, or packages without bubblewrap.
        RuntimeError: Isolation is not possible on this machine.
    """
    if (url is not None) != (isolation == "remote"):
        raise ValueError(
            "env.kwargs.url is the address for env.isolation=remote; "
            f"got url={url!r} and isolation={isolation}."
        )
    if packages and isolation != "bubblewrap":
        raise ValueError(
            f"env.kwargs.packages needs env.isolation=bubblewrap; "
            f"with {isolation}, programs import the installed packages."
        )
    if isolation == "remote":
        return RemoteSandbox(str(url), limits)
    if isolation == "none":
        logger.warning(
            "env.isolation=none: model-written programs run unprotected, "
            "as the user of this process."
        )
        return LocalSandbox(NoIsolation(), limits)
    return LocalSandbox(_tried_bubblewrap(limits, packages), limits)


@functools.cache
def _tried_bubblewrap(limits: Limits, packages: tuple[str, ...]) -> Bubblewrap:
    try:
        isolation = Bubblewrap(limits, packages)
        check_isolation(isolation, limits)
    except RuntimeError as error:
        raise RuntimeError(
            f"Programs cannot be isolated here: {error} {INSTALL}; {ALTERNATIVES}."
        ) from error
    return isolation


def _origin(problem: Problem) -> Info:
    return {"task": problem.row.data_source, "data_source": problem.row.data_source}
