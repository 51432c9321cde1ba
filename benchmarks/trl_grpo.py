"""The same GRPO steps with TRL's GRPOTrainer; run by `benchmarks.text_throughput` in a virtual
environment for TRL.

Nothing of siirl is imported here, so that both are measured as users install them.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class StepTimes(TrainerCallback):
    """Notes when each training step began and ended."""

    def __init__(self) -> None:
        self.marks: list[float] = []
        self.ended: list[float] = []

    def on_step_begin(self, *arguments, **named) -> None:
        """See TrainerCallback."""
        self.marks.append(time.perf_counter())

    def on_step_end(self, *arguments, **named) -> None:
        """See TrainerCallback."""
        self.marks.append(time.perf_counter())
        self.ended.append(time.time())


def exact_match(completions: list[str], answer: list[str], **columns) -> list[float]:
    """1 for the answer and nothing else."""
    return [
        float(completion.strip() == truth)
        for completion, truth in zip(completions, answer, strict=True)
    ]


def main() -> None:
    """Train some steps, and print their seconds as JSON in the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--questions", type=Path, required=True, help="JSON lines with prompt and answer"
    )
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--group", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--output", type=Path, required=True)
    flags = parser.parse_args()
    rows = [json.loads(line) for line in flags.questions.read_text().splitlines()]
    samples = flags.prompts * flags.group
    config = GRPOConfig(
        output_dir=str(flags.output),
        per_device_train_batch_size=flags.micro_batch,
        gradient_accumulation_steps=samples // flags.micro_batch,
        num_generations=flags.group,
        max_completion_length=flags.tokens,
        max_steps=flags.steps,
        learning_rate=flags.learning_rate,
        lr_scheduler_type="constant",
        beta=0.0,
        temperature=1.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    times = StepTimes()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(flags.model, dtype=torch.float32),
        reward_funcs=exact_match,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(flags.model),
        callbacks=[times],
    )
    trainer.train()
    seconds = [end - begin for begin, end in zip(times.marks[::2], times.marks[1::2], strict=True)]
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    lengths = [
        entry["completions/mean_length"]
        for entry in trainer.state.log_history
        if "completions/mean_length" in entry
    ]
    told = {"step_s": seconds, "ended": times.ended, "reward": rewards, "length": lengths}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
