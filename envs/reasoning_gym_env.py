r"""One question of reasoning-gym per episode, scored by the verifier of its generator.

    env = ReasoningGymEnv(dataset="chain_sum", max_terms=2)
    observation, info = await env.reset(seed=7, options={"split": "heldout"})
    observation, reward, terminated, truncated, info = await env.step("<answer>46</answer>")

The reward is the verifier's score in [0, 1]; success is a score of 1. The verifier reads the last
`<answer>…</answer>`, or the whole text if there is none. It runs in a worker process, because
verifiers evaluate the policy's expressions with sympy. If it raises, exceeds a limit or returns
another value, `ScoringFailed` is raised: a counted failure without a score.

An episode's seed determines the generator's seed, and a hash of the question its split. So no
training question is asked in evaluation.

Left out: `composite`, whose parts need their own configurations, reasoning-gym's curricula, rows of
files, and generators whose questions depend on the process's hash seed (`UNSTABLE`).
"""

import base64
import functools
import importlib
import pickle
import re
import zlib
from collections.abc import Mapping
from dataclasses import fields
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from envs.arguments import (
    HELDOUT_SHARE,
    check_heldout_share,
    checked_choice,
    checked_seed,
    not_running,
    read_options,
)
from envs.base import Environment, EpisodeFailed, Info, StepResult
from envs.deadlines import checked_deadline
from envs.math.generators import SPLITS, held_out
from envs.mistakes import describe_error
from envs.names import listed, nearest
from envs.text import (
    GRADED,
    GROUND_TRUTH,
    REWARD_PARTS,
    VERDICT,
    ModelText,
    checked_text,
    message,
    observe,
    shortened,
    text_spec,
)
from envs.worker_pool import WorkerKilled, WorkerPool, WorkerRaised, WorkerSettings, lease, release

PACKAGE = "reasoning_gym"
UNSTABLE = ("isomorphic_strings", "list_functions", "polynomial_multiplication", "ransom_note")
WORDINGS = {"words": "\nGive the final answer as <answer>...</answer>.", "bare": ""}
"""Wording to the text after the question."""
MAX_DRAWS = 200  # at a share of 0.15, all draws miss with a probability of 1e-14
VERIFIER_CPU_S = 5.0  # as env=math allows one comparison
WALL_PER_CPU_SECOND = 60  # a busy machine fails no episode
MEMORY_MIB = 4096  # address space: the package imports numpy and sympy
MAX_ACTION_CHARACTERS = 1 << 20
FIXED = ("seed", "size")  # fields of a generator's configuration that the environment sets
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)

Question = dict[str, Any]
"""reasoning-gym's item: `question`, `answer` and `metadata`."""


class ScoringFailed(EpisodeFailed):
    """The verifier raised, was killed at a limit, or returned no score in [0, 1]."""


class ReasoningGymEnv(Environment):
    """Questions of one generator of reasoning-gym; its name is the only task."""

    asks_questions = True

    def __init__(
        self,
        *,
        dataset: str,
        split: str = "train",
        heldout_share: float = HELDOUT_SHARE,
        wording: str = "words",
        num_verifiers: int = 2,
        verifier_cpu_s: float = VERIFIER_CPU_S,
        max_action_characters: int = MAX_ACTION_CHARACTERS,
        **config: Any,
    ) -> None:
        """Make the environment and run the generator once; starts no process.

        Args:
            dataset: Name of a generator, for example `chain_sum`.
            split: Default split of `reset`, `train` or `heldout`.
            heldout_share: Share of questions that are held out, by a hash of the question.
            wording: `words` (the question, then the answer's format) or `bare` (the question).
            num_verifiers: Worker processes that this process's environments share.
            verifier_cpu_s: Processor time in seconds after which scoring an answer fails.
            max_action_characters: Longest answer; `step` refuses longer ones.
            config: Fields of the generator's configuration, for example `max_terms=3`.

        Raises:
            ValueError: An unknown or refused dataset (the message has the nearest name, or the
                cause), or an argument that the generator refuses.
            RuntimeError: reasoning-gym is not installed.
        """
        checked_choice("wording", wording, WORDINGS)
        check_heldout_share(heldout_share, may_be_zero=False)
        if type(num_verifiers) is not int:
            raise ValueError(f"num_verifiers must be a whole number, got {num_verifiers!r}.")
        checked_deadline("verifier_cpu_s", verifier_cpu_s)
        self._split = checked_choice("split", split, SPLITS)
        self._dataset, self._config = _checked_dataset(dataset), dict(config)
        _check_config(dataset, config)
        self._heldout_share, self._suffix = heldout_share, WORDINGS[wording]
        self._settings = WorkerSettings(
            target="envs.reasoning_gym_env:score",
            num_workers=num_verifiers,
            deadline_s=WALL_PER_CPU_SECOND * verifier_cpu_s,
            cpu_s=verifier_cpu_s,
            memory_mib=MEMORY_MIB,
        )
        self._workers: WorkerPool | None = None
        self.spec = text_spec(
            name=PACKAGE,
            tasks=(dataset,),
            max_turns=1,
            max_action_characters=max_action_characters,
            check_row=refuse_row,
        )
        self._question: Question | None = None

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """See `Environment.reset`; options are `task` and `split`."""
        options = options or {}
        seed = checked_seed(seed)
        read_options(options, spec=self.spec, further=("split",))
        split = checked_choice("split", options.get("split", self._split), SPLITS)
        self._question = question = self._draw(seed, split=split)
        truth = question["answer"]
        info: Info = {
            "task": self._dataset,
            "data_source": self._dataset,
            GROUND_TRUTH: None if truth is None else str(truth),
            GRADED: True,
        }
        return observe([message("user", question["question"] + self._suffix)]), info

    async def step(self, action: Any) -> StepResult:
        """Score the text; ends the episode.

        Raises:
            ValueError: The action is not text, or too long.
            RuntimeError: No question is open.
            ScoringFailed: The verifier gives no score for the answer; the episode is over.
        """
        text = checked_text(action, space=cast(ModelText, self.spec.action_space))
        if self._question is None:
            raise not_running()
        question, self._question = self._question, None
        answer = final_answer(text)
        value = await self._score(answer, question)
        if value == 1.0:
            verdict = "correct"
        elif value > 0:
            verdict = "partly correct"
        else:
            verdict = "wrong"
        info: Info = {
            "task": self._dataset,
            "success": value == 1.0,
            REWARD_PARTS: {"score": value},
            VERDICT: verdict,
            "answer": shortened(answer),
        }
        return observe(), value, True, False, info

    def render(self) -> NDArray[np.uint8]:
        """Raises RuntimeError: a text environment has no image."""
        raise RuntimeError(f"Environment {PACKAGE!r} has no images.")

    async def close(self) -> None:
        """Release the worker processes."""
        self._question = None
        if self._workers is not None:
            release(self._workers)
            self._workers = None

    def _draw(self, seed: int | None, *, split: str) -> Question:
        random = np.random.default_rng(
            None if seed is None else [seed, zlib.crc32(self._dataset.encode())]
        )
        for generator_seed in random.integers(2**31, size=MAX_DRAWS):
            question = _generate(self._dataset, self._config, seed=int(generator_seed))
            key = question["question"]
            if held_out(key, share=self._heldout_share) == (split == "heldout"):
                return question
        raise ValueError(
            f"dataset={self._dataset!r} has too few different questions: none of {MAX_DRAWS} "
            f"belongs to split {split!r} at heldout_share={self._heldout_share}."
        )

    async def _score(self, answer: str, question: Question) -> float:
        if self._workers is None:
            self._workers = lease(self._settings)
        request = {
            "dataset": self._dataset,
            "config": self._config,
            "question": base64.b64encode(pickle.dumps(question)).decode(),
            "answer": answer,
        }
        try:
            value = await self._workers.call(request)
        except (WorkerRaised, WorkerKilled) as error:
            raise ScoringFailed(
                f"The verifier of dataset={self._dataset!r} gives no score for the answer "
                f"{shortened(answer)}: {error}."
            ) from error
        if not isinstance(value, int | float) or not 0 <= value <= 1:  # NaN fails as well
            raise ScoringFailed(
                f"The verifier of dataset={self._dataset!r} returned {value!r} for the answer "
                f"{shortened(answer)}, but a score lies in [0, 1]."
            )
        return float(value)


def score(request: dict[str, Any]) -> float:
    """The verifier's value for `request`, in a worker process (`ReasoningGymEnv` makes requests).

    Raises:
        Exception: Anything that the verifier raises.
    """
    config = tuple(sorted(request["config"].items()))
    verifier = _verifier(request["dataset"], pickle.dumps(config))
    question = pickle.loads(base64.b64decode(request["question"]))
    return cast(float, verifier.score_answer(answer=request["answer"], entry=question))


def final_answer(text: str) -> str:
    """The last `<answer>…</answer>` of `text`, or all of it; without surrounding white space."""
    marked = ANSWER.findall(text)
    return str(marked[-1] if marked else text).strip()


def refuse_row(row: object) -> None:
    """Raises ValueError: every question comes from the generator."""
    raise ValueError(
        "env=reasoning_gym generates its questions and takes no rows of files: leave "
        "data.train_files and data.val_files out."
    )


@functools.cache
def _verifier(dataset: str, config: bytes) -> Any:
    """A verifier depends on the generator's configuration, not on its seed."""
    arguments = dict(pickle.loads(config))
    return _package().create_dataset(dataset, seed=0, size=1, **arguments)


def _generate(dataset: str, config: Mapping[str, Any], *, seed: int) -> Question:
    made = _package().create_dataset(dataset, seed=seed, size=1, **config)
    return cast(Question, made[0])


def _package() -> ModuleType:
    try:
        return importlib.import_module(PACKAGE)
    except ModuleNotFoundError as missing:
        raise RuntimeError(
            f"env=reasoning_gym lacks the package {missing.name!r}: "
            "pip install 'siirl[reasoning-gym]'"
        ) from missing


def _generators() -> dict[str, Any]:
    """Name to (class, configuration class)."""
    _package()
    return dict(importlib.import_module(f"{PACKAGE}.factory").DATASETS)


def _checked_dataset(dataset: object) -> str:
    known = sorted(_generators().keys() - {"composite", *UNSTABLE})
    if dataset in UNSTABLE:
        raise ValueError(
            f"dataset={dataset!r} asks a different question in each process for the same seed, so "
            "the episodes of a group would differ: choose another one."
        )
    if dataset == "composite":
        raise ValueError(
            "dataset='composite' mixes generators that each need a configuration of their own, "
            "which env.kwargs does not hold: choose one of these generators."
        )
    if dataset not in known:
        raise ValueError(
            f"Unknown dataset {dataset!r}.{nearest(dataset, known)} env.dataset is one of the "
            f"{len(known)} generators of reasoning-gym: {listed(dataset, known)}."
        )
    return str(dataset)


def _check_config(dataset: str, config: Mapping[str, Any]) -> None:
    """Raise ValueError if the generator does not accept `config`, or makes no question with it."""
    known = [field.name for field in fields(_generators()[dataset][1]) if field.name not in FIXED]
    for name in config:
        if name not in known:
            raise ValueError(
                f"dataset={dataset!r} has no setting {name!r}.{nearest(name, known)} "
                f"Known: {listed(name, known)}."
            )
    try:
        _generate(dataset, config, seed=0)
    except Exception as error:  # generators raise their own exception classes for wrong settings
        raise ValueError(
            f"dataset={dataset!r} with {shortened(dict(config))} makes no question: "
            f"{describe_error(error)}."
        ) from error
