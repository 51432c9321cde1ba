"""Measures how much of a batch's policy gradient is signal, for starts of text tasks.

    python -m benchmarks.text_signal \
        shipped=assets/tiny_lm:sums-2 mine=outputs/my_model:sums-3,bases-3

Each start, `name=folder:tasks`, draws independent batches of questions and answers as a mini-batch
of `pipeline=grpo` with `trainer=laptop_text` has them: 16 questions, 16 answers each, advantages
divided by their deviation. Their gradients g share the mean G. The signal is |G|^2 / E|g|^2, with
|G|^2 estimated by the products of different batches. The noise scale is the number of questions at
which signal and noise of a batch are equal: 16 (1 - signal) / signal (McCandlish et al. 2018,
https://arxiv.org/abs/1812.06162). A run cannot learn from fewer questions than a few noise scales,
whatever its rate; `data.train_batch_size` times steps of `trainer=laptop_text` is 16,000.

Left out: clipping, and Adam's scaling of the gradient.
"""

# B answer, K batch, W weight, T response token

import argparse
import json
from typing import Any

import torch
from tensordict import TensorDict

from benchmarks.any_tasks_suites import RESULTS
from benchmarks.measured_on import describe_machine
from siirl.algos.advantages.group_relative import grpo_advantage
from siirl.engine.actor.text_scorer import text_scorer
from siirl.imitation.sft import Questions, measure_answers
from siirl.imitation.sft_examples import sft_source
from siirl.models.chat import load_chat_tokenizer
from siirl.models.language_model import load_language_model
from siirl.params.parser import parse_config

QUESTIONS, ANSWERS = 16, 16
LONGEST = 16  # tokens of an answer; a right one of these tasks has up to eleven
HELD_OUT = 400


def main() -> None:
    """Measure each start, write the results, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("starts", nargs="+", help="name=folder:task,task")
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--note", help="beside the result, such as how the starts were made")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for start in flags.starts:
        name, _, place = start.partition("=")
        folder, _, tasks = place.rpartition(":")
        measured = measure(folder, tasks.split(","), batches=flags.batches, seed=flags.seed)
        found.append({"start": name, "tasks": tasks.split(","), **measured})
    result = {
        "batches": flags.batches,
        "seed": flags.seed,
        "machine": describe_machine(),
        **({"notice": flags.note} if flags.note else {}),
        "starts": found,
    }
    file = RESULTS / "text_signal.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    file.with_suffix(".md").write_text(table(found))
    print(table(found))


def measure(folder: str, tasks: list[str], *, batches: int, seed: int) -> dict[str, Any]:
    """Success by task on held-out questions, and the signal of a batch's gradient."""
    config = parse_config(["env=math", f"env.tasks=[{','.join(tasks)}]", "pipeline=grpo"])
    model = load_language_model(folder, trust_remote_code=False)
    tokenizer = load_chat_tokenizer(folder, trust_remote_code=False)
    source = sft_source(config.env)
    questions = Questions(source, tokenizer, seed=seed)
    torch.manual_seed(seed)
    held_out = {
        task: measure_answers(model, questions.distinct(HELD_OUT, tasks=(task,)))["sampled"]
        for task in tasks
    }
    gradients_KW, mixed = [], 0.0
    for _ in range(batches):
        answers, right_B = sample(model, tokenizer, questions.draw(QUESTIONS))
        groups_B = torch.arange(len(right_B)) // ANSWERS
        advantages_B = grpo_advantage(rewards_B=right_B, group_B=groups_B)
        mixed += float((advantages_B.view(-1, ANSWERS) != 0).any(1).float().mean()) / batches
        gradients_KW.append(policy_gradient(model, answers, advantages_B))
    signal = signal_share(torch.stack(gradients_KW))
    scale = QUESTIONS * (1 - signal) / signal if signal > 0 else None
    return {"sampled": held_out, "mixed_groups": mixed, "signal": signal, "noise_scale": scale}


@torch.no_grad()
def sample(model: Any, tokenizer: Any, questions: TensorDict) -> tuple[TensorDict, torch.Tensor]:
    """`ANSWERS` to each question at temperature 1, and 1.0 for those that are right."""
    width = questions["input_ids"].shape[1] - questions["responses"].shape[1]
    tokens_BS = model.causal_lm.generate(
        questions["input_ids"][:, :width].repeat_interleave(ANSWERS, 0),
        attention_mask=questions["attention_mask"][:, :width].repeat_interleave(ANSWERS, 0),
        max_new_tokens=LONGEST,
        do_sample=True,
        top_k=0,
        eos_token_id=tokenizer.end_id,
        pad_token_id=tokenizer.pad_id,
    )
    answers_BT = tokens_BS[:, width:]
    ended_BT = (answers_BT == tokenizer.end_id).long()
    own_BT = (ended_BT.cumsum(1) - ended_BT == 0).long()
    prompts_BS = questions["attention_mask"][:, :width].repeat_interleave(ANSWERS, 0)
    columns = {
        "input_ids": tokens_BS,
        "attention_mask": torch.cat([prompts_BS, own_BT], 1),
        "responses": answers_BT,
        "response_mask": own_BT,
    }
    truth = [_own_tokens(row) for row in questions for _ in range(ANSWERS)]
    rows = TensorDict(columns, batch_size=[len(truth)])
    right = [_own_tokens(row) == tokens for row, tokens in zip(rows, truth, strict=True)]
    return rows, torch.tensor(right, dtype=torch.float32)


def _own_tokens(row: TensorDict) -> list[int]:
    """The tokens of an answer, with its end."""
    tokens: list[int] = row["responses"][row["response_mask"].bool()].tolist()
    return tokens


def policy_gradient(model: Any, rows: TensorDict, advantages_B: torch.Tensor) -> torch.Tensor:
    """Gradient [W] of the mean over tokens of advantage times log-prob."""
    model.zero_grad(set_to_none=True)
    log_probs_BT = text_scorer(model, rows, 1.0).log_probs_BT
    mask_BT = rows["response_mask"]
    ((advantages_B[:, None] * log_probs_BT * mask_BT).sum() / mask_BT.sum()).backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients])


def signal_share(gradients_KW: torch.Tensor) -> float:
    """|G|^2 / E|g|^2: the mean product of two different rows over that of a row with itself.

    The estimate may be negative if nearly all of the gradient is noise.
    """
    products_KK = gradients_KW @ gradients_KW.T
    own, count = products_KK.diagonal().sum(), len(products_KK)
    between = (products_KK.sum() - own) / (count * (count - 1))
    return float(between / (own / count))


def table(found: list[dict[str, Any]]) -> str:
    """A row a start."""
    lines = [
        "| start | sampled, by task | mixed groups | signal of a batch | noise scale, questions |",
        "|---|---|---|---|---|",
    ]
    for start in found:
        tasks = ", ".join(f"{task} {share:.0%}" for task, share in start["sampled"].items())
        scale = "-" if start["noise_scale"] is None else f"{start['noise_scale']:,.0f}"
        lines.append(
            f"| {start['start']} | {tasks} | {start['mixed_groups']:.0%} | {start['signal']:.1%} "
            f"| {scale} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
