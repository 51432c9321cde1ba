"""Steps of GRPO on text with vLLM on one GPU: where their time and memory go.

    python -m benchmarks.gpu_text_step FOLDER --model qwen2.5-7b --steps 3

The model has random weights of a published shape and is written to FOLDER in the published layout
(15 GB for 7 billion weights). `siirl train` reads it as it reads a downloaded one, with adapters
for 7 billion weights and without for 1.5 billion. Random weights hardly ever end an answer, so
every answer has the full length. A function of the answer alone stands for the grader, so that
groups differ. The first step has start-up costs of compilers and is recorded too.

On a CPU (`--small`) the model is small. Left out: learning, which random weights cannot show.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.measured_on import describe_machine
from siirl.gpu_checks.random_model import write_model
from siirl.gpu_checks.shapes import QWEN_1_5B, QWEN_7B, SMALL
from siirl.train import main as train

RESULT = Path(__file__).parent / "results" / "gpu" / "text_step.json"
KEPT = (
    *("time/", "perf/", "memory/", "policy/", "actor/", "rollout/log_prob_gap", "sync/"),
    "rollout/avg_response_length",
)
SHAPES = {
    "qwen2.5-7b": QWEN_7B,
    "qwen2.5-1.5b": QWEN_1_5B,
    "small": {**SMALL, "vocab_size": 400, "max_position_embeddings": 512, "hidden_size": 64},
}
ADAPTERS = "actor_rollout_ref.model.lora.rank=32"


def main() -> None:
    """Write the model, train, and write the result."""
    flags = _flags()
    name = "small" if flags.small else flags.model
    model = flags.folder / name
    if not model.exists():
        write_model(model, SHAPES[name], torch.device("cpu" if flags.small else "cuda"))
    if not flags.small:  # the run must find the GPU as empty as a new process would
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    status = train([*job(flags, model), *flags.settings])
    if status != 0:
        sys.exit(status)
    (metrics,) = (flags.folder / flags.run).glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    result = {
        "command": shlex.join(["python", "-m", "benchmarks.gpu_text_step", *sys.argv[1:]]),
        "device": "cpu" if flags.small else torch.cuda.get_device_name(),
        "machine": describe_machine(),
        "steps": [kept(row) for row in rows if row["step"] > 0],
    }
    flags.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["steps"], indent=1))


def job(flags: argparse.Namespace, model: Path) -> list[str]:
    """Settings of the run."""
    settings = [
        *("pipeline=grpo", "env=math", "model=causal_lm", "rollout=vllm"),
        f"cluster={flags.cluster}",
        f"actor_rollout_ref.model.path={model}",
        f"actor_rollout_ref.rollout.mode={flags.mode}",
        *(f"custom_reward_function.path={__file__}", "custom_reward_function.name=varied"),
        f"data.train_batch_size={flags.prompts}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={flags.prompts}",
        *("data.max_prompt_length=256", f"data.max_response_length={flags.tokens}"),
        f"trainer.total_steps={flags.steps}",
        *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        *("trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.max_minutes=null"),
        *(f"trainer.output_dir={flags.folder}", f"trainer.experiment_name={flags.run}"),
    ]
    if flags.small:
        return [*settings, "actor_rollout_ref.model.dtype=float32"]
    settings += [
        "trainer=gpus_text",
        *("trainer.n_gpus_per_node=1", "env.num_servers=1", "trainer.gpu_memory_gib=null"),
        "actor_rollout_ref.actor.use_torch_compile=true",
    ]
    if flags.model == "qwen2.5-7b":
        settings.append(ADAPTERS)
    return settings


def varied(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """A reward of 0 or 1 that answers of one prompt differ in."""
    return float(sum(map(ord, solution_str)) % 2)


def kept(row: dict[str, Any]) -> dict[str, float]:
    """The metrics of a step that say where its time and memory go."""
    return {name: round(value, 4) for name, value in row.items() if name.startswith(KEPT)}


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="GPU steps of GRPO on text with vLLM.")
    parser.add_argument("folder", type=Path, help="for models and runs")
    parser.add_argument("--model", choices=("qwen2.5-7b", "qwen2.5-1.5b"), default="qwen2.5-7b")
    parser.add_argument("--prompts", type=int, default=16, help="prompts of a step")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of an answer")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--mode", choices=("sync", "async"), default="async")
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--run", default="run", help="folder of the run, below FOLDER")
    parser.add_argument("--small", action="store_true", help="a small model on a CPU")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("settings", nargs="*", help="further settings of the run, key=value")
    return parser.parse_intermixed_args()  # settings may follow options


if __name__ == "__main__":
    main()
