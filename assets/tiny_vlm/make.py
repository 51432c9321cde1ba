"""Makes the weights beside this file: a tiny model that counts dots, right in a part of the cases.

    python assets/tiny_vlm/make.py --output assets/tiny_vlm

Supervised fine-tuning from random weights on pictures of `benchmarks.counted_dots`, which stops as
soon as the model is right often enough for RL to do the rest. Run it in a checkout.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tensordict import TensorDict

from benchmarks.counted_dots import dots_rows
from envs.prompt_rows import PromptRow
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.imitation.sft import NOTES_FILE, measure_answers, train_sft
from siirl.models.chat import ChatTokenizer
from siirl.models.tiny_vlm import new_tiny_vlm, tiny_seeing_tokenizer

SEED, HELD_OUT_SEED = 0, 1
UPDATES, BATCH_ROWS, LEARNING_RATE = 3000, 64, 1e-3
LOOK_EVERY, LOOKED_AT, STOP_AT = 50, 256, 0.5


def example(row: PromptRow, tokenizer: ChatTokenizer) -> Sample:
    """A question with its answer, as a row for `text_scorer`."""
    prompt = tokenizer.encode_prompt(row.prompt, row.images)
    answer = (*tokenizer.encode_text(str(row.ground_truth)), tokenizer.end_id)
    whole = np.array(prompt + answer)
    return Sample(
        {
            "prompts": np.array(prompt),
            "responses": np.array(answer),
            "response_mask": np.ones(len(answer), np.int64),
            "input_ids": whole,
            "attention_mask": np.ones(len(whole), np.int64),
            **tokenizer.pictures_of(row.images).columns(whole),
        }
    )


def drawn(rows: Iterator[PromptRow], count: int, tokenizer: ChatTokenizer) -> TensorDict:
    """`count` questions as a batch."""
    return Samples2Dict([example(next(rows), tokenizer) for _ in range(count)])


def make(output: Path, *, stop_at: float, updates: int) -> dict[str, object]:
    """Train, write the folder, and return what was measured."""
    tokenizer = tiny_seeing_tokenizer()
    model = new_tiny_vlm(seed=SEED)
    rows, held_out = dots_rows(seed=SEED), dots_rows(seed=HELD_OUT_SEED)
    losses = train_sft(
        model,
        lambda: drawn(rows, BATCH_ROWS, tokenizer),
        updates=updates,
        learning_rate=LEARNING_RATE,
    )
    update, loss = 0, float("nan")
    for update, loss in enumerate(losses, 1):
        if update % LOOK_EVERY == 0:
            greedy = measure_answers(model, drawn(rows, LOOKED_AT, tokenizer))["greedy"]
            print(f"update {update}, loss {loss:.3f}, right {greedy:.2f}", flush=True)
            if greedy >= stop_at:
                break
    measured = measure_answers(model, drawn(held_out, 1000, tokenizer))
    notes = {
        "command": "python assets/tiny_vlm/make.py --output assets/tiny_vlm",
        "updates": update,
        "loss": round(loss, 4),
        "held_out": {name: round(value, 4) for name, value in measured.items()},
    }
    model.save(output)
    tokenizer.save(output)
    (output / NOTES_FILE).write_text(json.dumps(notes, indent=1) + "\n")
    return notes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--stop-at", type=float, default=STOP_AT, help="share of right answers")
    parser.add_argument("--updates", type=int, default=UPDATES)
    flags = parser.parse_args()
    print(make(flags.output, stop_at=flags.stop_at, updates=flags.updates))
