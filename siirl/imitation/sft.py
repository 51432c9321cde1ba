"""Supervised fine-tuning (SFT) of a language model on an environment's questions and answers.

RL from a 0/1 reward needs a model that is sometimes right. A short run on questions of the training
split ends as soon as the model is right often enough in every task; RL does the rest. Tasks that
have reached this share are left out meanwhile. Stopping at a mean over tasks could leave one task
solved and another never right, and RL can improve neither. It uses RL's engine and scorer with
another loss: the negative log-likelihood of the answer.
"""

# B row, P prompt token, T response token

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from envs.prompt_rows import PromptRow
from siirl.algos.log_probs import TokenScores
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.training.batch_loss import LossSum
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.train_engine import TrainEngine
from siirl.errors import ConfigError
from siirl.files.documents import read_json
from siirl.files.paths import find
from siirl.imitation.sft_examples import Example, SftSource, make_example, sft_source
from siirl.imitation.work_progress import WorkProgress
from siirl.models.chat import ChatTokenizer, load_chat_tokenizer
from siirl.models.language_model import LanguageModel, load_language_model
from siirl.models.tiny_lm import TinyLMShape, new_tiny_lm, tiny_tokenizer
from siirl.params import OptimizerArguments
from siirl.params.env_args import EnvArguments
from siirl.params.model_args import ModelArguments
from siirl.params.training_args import TrainingArguments

NOTES_FILE = "warm_start.json"
MEASURED_QUESTIONS = 1000  # held out; +-3 points at 40 %
# updates between two measurements of success; questions of a measurement, and the fewest of a task
LOOK_EVERY = 20
LOOKED_AT = 256
LOOKED_AT_LEAST = 32
COLD = 1e-4  # temperature at which the most likely token has all the probability
MAX_GRAD_NORM = 1.0


def rows_of(examples: Sequence[Example], *, pad_id: int) -> TensorDict:
    """Rows for `text_scorer`: prompts padded on the left, completions padded on the right."""
    prompt_width = max(len(example.prompt) for example in examples)
    width = prompt_width + max(len(example.completion) for example in examples)
    ids_BS = torch.full((len(examples), width), pad_id)
    present_BS, own_BS = torch.zeros_like(ids_BS), torch.zeros_like(ids_BS)
    for row, example in enumerate(examples):
        filled = slice(prompt_width - len(example.prompt), prompt_width + len(example.completion))
        ids_BS[row, filled] = torch.tensor(example.prompt + example.completion)
        present_BS[row, filled] = 1
        own_BS[row, prompt_width : filled.stop] = torch.tensor(example.loss_mask, dtype=torch.long)
    columns = {"input_ids": ids_BS, "attention_mask": present_BS}
    columns |= {"responses": ids_BS[:, prompt_width:], "response_mask": own_BS[:, prompt_width:]}
    return TensorDict(columns, batch_size=[len(examples)])


def train_sft(
    model: LanguageModel, draw: Callable[[], TensorDict], *, updates: int, learning_rate: float
) -> Iterator[float]:
    """Train `model` in place on rows from `draw`; yield the loss per token after every update.

    Warm-up, then a cosine to 0 at `updates`; the caller may stop iterating earlier.
    """
    engine: TrainEngine[TokenScores] = TrainEngine(
        module=model,
        scorer=text_scorer,
        ranks=OneProcess(),
        optim=OptimizerArguments(
            lr=learning_rate, scheduler="cosine_with_warmup", warmup_ratio=0.1
        ),
        total_steps=updates,
        micro_batch_size=1 << 30,  # one forward pass per batch
        temperature=1.0,
        max_grad_norm=MAX_GRAD_NORM,
    ).initialize()
    for _ in range(updates):
        yield engine.train_batch(
            draw(), _negative_log_likelihood, lambda rows: rows["response_mask"].sum()
        ).batch.loss


def _negative_log_likelihood(scores: TokenScores, rows: TensorDict) -> LossSum:
    return LossSum(loss=-scores.log_probs_BT.sum())


@torch.no_grad()
def measure_answers(
    model: LanguageModel, rows: TensorDict, *, rollouts: int = 1
) -> dict[str, float]:
    """Measure how often a model gives the answers of `rows`.

    Args:
        model: The model.
        rows: Questions with their answers.
        rollouts: Answers to a question in training.

    Returns:
        `greedy`: share of answers in which every token is the greedy one. `sampled`: mean
        probability of a whole answer at temperature 1. `mixed`: expected share of questions whose
        `rollouts` answers are neither all right nor all wrong. `entropy`: nats per token along the
        correct answers. `questions`: their number.
    """
    scores, cold = (text_scorer(model, rows, temperature) for temperature in (1.0, COLD))
    right_B = scores.log_probs_BT.sum(1).exp()
    return {
        "greedy": float((cold.log_probs_BT.sum(1) > math.log(0.5)).float().mean()),
        "sampled": float(right_B.mean()),
        "mixed": float((1 - right_B**rollouts - (1 - right_B) ** rollouts).mean()),
        "entropy": float(scores.entropy_BT.sum() / rows["response_mask"].sum()),
        "questions": len(rows),
    }


class Questions:
    """Draws questions of an environment as training rows.

    Args:
        source: The environment's questions and target responses.
        tokenizer: The model's tokenizer.
        seed: Seed of the draws.
    """

    def __init__(self, source: SftSource, tokenizer: ChatTokenizer, *, seed: int) -> None:
        self.source, self.tokenizer = source, tokenizer
        self.random = np.random.default_rng(seed)
        self.asked = source.tasks  # by `draw`

    def draw(self, count: int, *, tasks: Sequence[str] | None = None) -> TensorDict:
        """`count` questions of the training split, alternating between `tasks` (`asked`)."""
        asked = tasks or self.asked
        return self._rows([self._question(number, "train", asked) for number in range(count)])

    def distinct(self, count: int, *, tasks: Sequence[str] | None = None) -> TensorDict:
        """Distinct held-out questions of `tasks` (all); fewer than `count` if not enough exist."""
        asked = tasks or self.source.tasks
        drawn = (self._question(number, "heldout", asked) for number in range(4 * count))
        return self._rows(list({row.prompt[-1]["content"]: row for row in drawn}.values())[:count])

    def _question(self, number: int, split: str, tasks: Sequence[str]) -> PromptRow:
        task = tasks[number % len(tasks)]
        try:
            return self.source.draw_row(task, split, int(self.random.integers(1 << 31)))
        except ValueError as error:
            raise ConfigError(f"task {task}: {error}") from error

    def _rows(self, questions: Sequence[PromptRow]) -> TensorDict:
        return rows_of(
            [make_example(row, self.source.respond, self.tokenizer) for row in questions],
            pad_id=self.tokenizer.pad_id,
        )


def unlearnt(model: LanguageModel, questions: Questions, *, stop_at: float) -> tuple[str, ...]:
    """Tasks in which `model` answers a share below `stop_at` of the training questions greedily."""
    tasks = questions.source.tasks
    count = max(LOOKED_AT_LEAST, LOOKED_AT // len(tasks))
    rows = ((task, questions.draw(count, tasks=(task,))) for task in tasks)
    return tuple(task for task, drawn in rows if measure_answers(model, drawn)["greedy"] < stop_at)


def warm_start_on_answers(
    output: Path,
    *,
    initial: ModelArguments,
    env: EnvArguments,
    trainer: TrainingArguments,
    rollouts: int,
    updates: int,
    batch_rows: int,
    learning_rate: float,
    stop_at: float,
    command: str,
) -> dict[str, Any]:
    """Fine-tune a model (new, or from `model.path`) on answers, and write its folder.

    Args:
        output: Folder of the result.
        initial: The model.
        env: The questions.
        trainer: Has the seed.
        rollouts: Answers to a question in training.
        updates: Maximum number of optimiser steps.
        batch_rows: Questions per optimiser step.
        learning_rate: Peak of the schedule.
        stop_at: Training stops when this share of each task's training questions is answered
            greedily.
        command: Recorded in the folder's notes.

    Returns:
        The notes: command, updates, loss, `measure_answers` on held-out questions (of all tasks,
        and of each if there are several), and the notes of the initial model.
    """
    model, tokenizer = _initial_model(initial, trainer)
    questions = Questions(sft_source(env), tokenizer, seed=trainer.seed)
    held_out, update, loss = questions.distinct(MEASURED_QUESTIONS), 0, math.nan
    tasks = questions.source.tasks
    with WorkProgress() as progress:
        bar = progress.add_task("answers", total=updates)
        for update, loss in enumerate(
            train_sft(
                model,
                lambda: questions.draw(batch_rows),
                updates=updates,
                learning_rate=learning_rate,
            ),
            1,
        ):
            progress.update(bar, advance=1, description=f"answers, loss {loss:.2f}")
            if update % LOOK_EVERY == 0:
                questions.asked = unlearnt(model, questions, stop_at=stop_at)
                if not questions.asked:
                    break
    notes: dict[str, Any] = {"command": command, "updates": update, "loss": round(loss, 4)}
    notes["held_out"] = _rounded(measure_answers(model, held_out, rollouts=rollouts))
    if len(tasks) > 1:
        count = max(LOOKED_AT_LEAST, MEASURED_QUESTIONS // len(tasks))
        notes["held_out_by_task"] = {
            task: _rounded(
                measure_answers(model, questions.distinct(count, tasks=(task,)), rollouts=rollouts)
            )
            for task in tasks
        }
    notes |= _notes_of(initial.path)
    model.save(output)
    tokenizer.save(output)
    (output / NOTES_FILE).write_text(json.dumps(notes, indent=1) + "\n")
    return notes


def _rounded(measured: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in measured.items()}


def _notes_of(path: str | None) -> dict[str, Any]:
    """Notes of the model at `path` if it has any, so that its training remains reproducible."""
    file = None if path is None else find(path) / NOTES_FILE
    return (
        {}
        if file is None or not file.is_file()
        else {"taught_on_from": read_json(file, remedy="Remove it, or copy the model again.")}
    )


def _initial_model(
    settings: ModelArguments, trainer: TrainingArguments
) -> tuple[LanguageModel, ChatTokenizer]:
    if settings.path is not None:
        model = load_language_model(settings.path, trust_remote_code=settings.trust_remote_code)
        return model, load_chat_tokenizer(
            settings.path, trust_remote_code=settings.trust_remote_code
        )
    try:
        shape = TinyLMShape(**settings.options)
    except TypeError as error:
        raise ConfigError(
            f"actor_rollout_ref.model.options={settings.options} fits no TinyLMShape: {error}."
        ) from error
    return LanguageModel(new_tiny_lm(seed=trainer.seed, shape=shape)), ChatTokenizer(
        tiny_tokenizer()
    )
