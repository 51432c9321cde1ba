"""The plan's memory against measured memory, for models of 50 to 300 million weights on CPUs.

    python -m benchmarks.memory_plan [--only NAME ...]

The table of a rank: each case trains a language model of Qwen2.5's architecture and random weights
for two optimiser steps, as a job's actor does, in one process per rank. The second step is
measured, when moments exist: resident memory of a rank above what it had after the same step of a
tiny model, largest during the passes of the update and during the optimiser's step. The plan is
`siirl.preflight.rank_memory` for the same configuration. Aim: the larger of the two phases within
15 %.

The memory of a run: `siirl train` trains such a model, with saves between its steps, and the
resident memory of all its processes is added up while it runs, pages that several map counted once.
The plan is the line `memory` that the run prints. Aim: within 15 %. Runs of a model of 0.3
million weights measure what a process takes without a model, from which the plan's WORKER_BYTES
and ADAPTERS_BYTES are.

Each measurement is written at once; rows that were not asked for stay as they were.

Left out: all weights of the largest model, whose training would take 5 GB; rollout, whose engines
take memory that the configuration sets; vLLM; GPUs, which `siirl gpu-check` measures.
"""

import argparse
import gc
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks.measured_on import describe_machine
from benchmarks.memory_meter import (
    MIB,
    RETURNED_AT_ONCE,
    peak_bytes,
    qwen_config,
    reset_peak,
    resident_bytes,
    set_one_thread,
    share_bytes,
    write_model,
)
from benchmarks.processes import descendants_of
from envs.base import EnvSpec
from envs.text import MESSAGES

RESULT = Path(__file__).parent / "results" / "memory_plan.json"
TOKENIZER = Path(__file__).resolve().parents[1] / "assets" / "tiny_lm"
AIM = 0.15
PROMPT, ROW = 128, 512  # tokens
SMALL_VOCABULARY = 512  # of the model whose step is the zero point
PHASES = ("update", "optimiser's step")
QUESTIONS = EnvSpec(
    "math",
    ("only",),
    gymnasium.spaces.Dict({MESSAGES: gymnasium.spaces.Sequence(gymnasium.spaces.Text(1))}),
    gymnasium.spaces.Text(1),
    1,
)


RUN_EVERY_S = 0.25  # between two measurements of a run's processes


@dataclass(frozen=True)
class Run:
    """A run of `siirl train`, and the settings besides those of all runs."""

    name: str
    model: dict[str, Any]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A model, its ranks and the settings of its training."""

    name: str
    model: dict[str, Any]
    ranks: int = 1
    words: tuple[str, ...] = ()
    """Settings as on a command line."""
    rows: int = 4
    """Rows of a rank, of the longest possible length."""


def cases() -> list[Case]:
    """All cases, small ones first."""
    small = qwen_config(layers=9, width=512, hidden=1536)
    middle = qwen_config(layers=16, width=768, hidden=2304)
    large = qwen_config(layers=18, width=1024, hidden=3584)
    lora = ("actor_rollout_ref.model.lora.rank=32",)
    recomputed = ("actor_rollout_ref.model.gradient_checkpointing=true",)
    one, four = (f"actor_rollout_ref.actor.micro_batch_tokens={rows * ROW}" for rows in (1, 4))
    bfloat16 = ("actor_rollout_ref.model.dtype=bfloat16",)
    return [
        Case("one row a pass", small, words=(one,)),
        Case("four rows a pass", small, words=(four,)),
        Case("recomputed, four rows a pass", small, words=(*recomputed, four)),
        Case("two ranks", small, ranks=2, words=(one,)),
        Case("two ranks, bfloat16", small, ranks=2, words=(*bfloat16, one)),
        Case("one row a pass", middle, words=(one,)),
        Case("two ranks, recomputed", middle, ranks=2, words=(*recomputed, one)),
        Case("LoRA, recomputed", large, words=(*recomputed, one, *lora)),
        Case("two ranks, LoRA, bfloat16", large, ranks=2, words=(*bfloat16, one, *lora)),
        Case("one rank, bfloat16", middle, words=(*bfloat16, one)),
        Case("one rank, bfloat16, recomputed", middle, words=(*bfloat16, *recomputed, one)),
        Case("LoRA, bfloat16", middle, words=(*bfloat16, one, *lora)),
        Case("compiled", small, words=(one, "actor_rollout_ref.actor.use_torch_compile=true")),
    ]


def runs() -> list[Run]:
    """All runs."""
    tiny = qwen_config(layers=2, width=128, hidden=128) | {"vocab_size": SMALL_VOCABULARY}
    model = qwen_config(layers=14, width=512, hidden=1536)
    larger = qwen_config(layers=16, width=768, hidden=2304)
    lora = ("actor_rollout_ref.model.lora.rank=32", "actor_rollout_ref.model.dtype=bfloat16")
    separate = ("cluster=ray", "trainer.n_gpus_per_node=2", "dag.groups={rollout: 1, train: 1}")
    return [
        Run("run of a tiny model", tiny, ("cluster=local",)),
        Run("run of a tiny model with LoRA", tiny, ("cluster=local", lora[0])),
        Run("run on one rank", model, ("cluster=local",)),
        Run("run on two ranks", model, ("cluster=ray", "trainer.n_gpus_per_node=2")),
        Run("run on a rollout and a training rank", model, separate),
        Run("the same as a stream", model, (*separate, "trainer.max_staleness=1")),
        Run("run of LoRA in bfloat16", larger, ("cluster=local", *lora)),
    ]


def varied_reward(*, solution_str: str, **_: Any) -> float:
    """A reward that differs between the answers of random weights, so that they are trained."""
    return len(set(solution_str)) % 7


def main() -> None:
    """Measure every case and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--only", nargs="+", help="names of cases and runs")
    parser.add_argument("--case", type=int, help="a rank of a case; set by this command itself")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--work", type=Path)
    flags = parser.parse_args()
    if flags.case is not None:
        _work(cases()[flags.case], rank=flags.rank, folder=flags.work)
        return
    set_one_thread()
    machine = describe_machine()

    def wanted(each: Case | Run) -> bool:
        return flags.only is None or each.name in flags.only

    for number, case in enumerate(cases()):
        if wanted(case):
            row = run(number, case)
            print(summary(row), flush=True)
            _write(flags.output, row, machine=machine)
    for each in runs():
        if wanted(each):
            row = whole_run(each)
            print(summary_of_run(row), flush=True)
            _write(flags.output, row, machine=machine)


def _write(output: Path, row: dict[str, Any], *, machine: dict[str, Any]) -> None:
    """Write a measurement in place of that of the same case; the others stay as they were."""
    row["revision"] = machine["revision"]
    before = json.loads(output.read_text()) if output.is_file() else {}
    found = [*before.get("cases", ()), *before.get("runs", ()), row]
    kept = _in_order(found, [*map(_key, cases())])
    whole = _in_order(found, [*map(_key, runs())])
    result = {
        "command": f"python -m benchmarks.memory_plan {shlex.join(sys.argv[1:])}".strip(),
        "machine": machine,
        "aim": f"predicted within {AIM:.0%} of measured, in the phase that needs most",
        "largest_error": max(abs(each["error"]) for each in (*kept, *whole)),
        "cases": kept,
        "runs": whole,
    }
    output.write_text(json.dumps(result, indent=1) + "\n")


def _key(case: Case | Run) -> tuple[Any, ...]:
    return (case.name, list(case.words), case.model)


def _in_order(rows: Sequence[dict[str, Any]], keys: Sequence[Any]) -> list[dict[str, Any]]:
    """The newest of `rows` for each of `keys` that has one."""
    newest = {json.dumps((row["case"], row["settings"], row["model"])): row for row in rows}
    return [newest[name] for name in map(json.dumps, keys) if name in newest]


def summary(row: dict[str, Any]) -> str:
    """One line of a case."""
    parts = ", ".join(
        f"{phase} {row['predicted_mib'][phase]:.0f} planned, {row['measured_mib'][phase]:.0f} "
        "measured"
        for phase in PHASES
    )
    return f"{row['parameters'] / 1e6:.0f} M, {row['case']}: {parts} MiB; error {row['error']:+.1%}"


def summary_of_run(row: dict[str, Any]) -> str:
    """One line of a run."""
    return (
        f"{row['parameters'] / 1e6:.0f} M, {row['case']}: {row['predicted_mib']:.0f} planned, "
        f"{row['measured_mib']:.0f} measured MiB; error {row['error']:+.1%}"
    )


def whole_run(case: Run) -> dict[str, Any]:
    """Plan and measure a run."""
    from siirl.params.parser import parse_config
    from siirl.preflight.early_checks import check_early
    from siirl.preflight.memory import total
    from siirl.preflight.prepare import prepare

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parameters = write_model(folder / "model", case.model)
        for file in TOKENIZER.glob("tokenizer*"):
            shutil.copyfile(file, folder / "model" / file.name)
        words = [*_words_of_run(folder), *case.words]
        config = parse_config(words)
        parts = prepare(config, check_early(config, named=())).plan.needs.memory_parts
        process = subprocess.Popen(
            [sys.executable, "-m", "siirl.train", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        measured = 0
        while process.poll() is None:
            living = {process.pid, *descendants_of([process.pid])}
            measured = max(measured, sum(map(share_bytes, living)))
            time.sleep(RUN_EVERY_S)
        if process.returncode:
            raise SystemExit(f"{case.name} failed.")
    return {
        "case": case.name,
        "parameters": parameters,
        "settings": list(case.words),
        "model": case.model,
        "predicted_mib": total(parts) / MIB,
        "measured_mib": measured / MIB,
        "parts_mib": {name: size / MIB for name, size in parts if size},
        "error": total(parts) / measured - 1,
    }


def _words_of_run(folder: Path) -> list[str]:
    """The settings of all runs: two steps of eight answers, in two micro-batches."""
    return [
        *("pipeline=grpo", "env=math", "model=causal_lm", "rollout=hf"),
        *(f"actor_rollout_ref.model.path={folder}/model", f"trainer.output_dir={folder}/runs"),
        *("actor_rollout_ref.model.dtype=float32", "data.max_prompt_length=32"),
        *("data.max_response_length=224", "actor_rollout_ref.actor.micro_batch_tokens=1024"),
        *("data.train_batch_size=2", "actor_rollout_ref.rollout.n=4"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "env.num_servers=1"),
        *("env.envs_per_server=8", "trainer.val_episodes=0", "trainer.val_before_train=false"),
        *("trainer.total_steps=3", "trainer.max_minutes=null", "trainer.save_freq=1"),
        "custom_reward_function.name=benchmarks.memory_plan:varied_reward",
    ]


def run(number: int, case: Case) -> dict[str, Any]:
    """Plan and measure a case."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parameters = write_model(folder / "model", case.model)
        sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
        write_model(folder / "small", case.model | sizes | {"vocab_size": SMALL_VOCABULARY})
        for file, name in itertools.product(TOKENIZER.glob("tokenizer*"), ("model", "small")):
            shutil.copyfile(file, folder / name / file.name)
        command = [sys.executable, "-m", "benchmarks.memory_plan", f"--case={number}"]
        ranks = [
            subprocess.Popen(
                [*command, f"--rank={rank}", f"--work={folder}"],
                env={**os.environ, **RETURNED_AT_ONCE, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(case.ranks)
        ]
        statuses = [rank.wait() for rank in ranks]
        if any(statuses):
            raise SystemExit(f"{case.name}: a rank failed.")
        measured = [
            json.loads(_result(folder, rank).read_text())["measured"] for rank in range(case.ranks)
        ]
        planned = json.loads(_result(folder, 0).read_text())["planned"]
    largest = {phase: max(each[phase] for each in measured) for phase in PHASES}
    phase = max(PHASES, key=lambda name: largest[name])
    return {
        "case": case.name,
        "parameters": parameters,
        "ranks": case.ranks,
        "settings": list(case.words),
        "model": case.model,
        "predicted_mib": {name: planned["phases"][name] / MIB for name in PHASES},
        "measured_mib": {name: largest[name] / MIB for name in PHASES},
        "parts_mib": {name: size / MIB for name, size in planned["parts"].items()},
        "error": planned["phases"][phase] / largest[phase] - 1,
    }


def _result(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.json"


def _work(case: Case, *, rank: int, folder: Path) -> None:
    """Measure one rank of a case, and write what was found."""
    from siirl.engine.training.collectives import OneProcess, join, leave
    from siirl.preflight.memory import total
    from siirl.preflight.rank_memory import rank_memory

    config = configuration(case, folder / "model")
    table = rank_memory(config, QUESTIONS)
    assert table is not None
    planned = {
        "phases": {name: total(table.held) + total(parts) for name, parts in table.phases},
        "parts": dict([*table.held, *(part for _, parts in table.phases for part in parts)]),
    }
    group = (
        OneProcess()
        if case.ranks == 1
        else join(rank=rank, world_size=case.ranks, init_method=f"file://{folder}/rendezvous")
    )
    measured = _measure(case, config, configuration(case, folder / "small"), ranks=group)
    _result(folder, rank).write_text(json.dumps({"planned": planned, "measured": measured}))
    leave(group)


def configuration(case: Case, model: Path) -> Any:
    """The parsed configuration of a GRPO job that trains the model."""
    from siirl.params.parser import parse_config

    return parse_config(
        [
            *("pipeline=grpo", "env=math", "model=causal_lm", "rollout=hf"),
            *(f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.model.dtype=float32"),
            *(f"trainer.n_gpus_per_node={case.ranks}", f"data.max_prompt_length={PROMPT}"),
            *(f"data.max_response_length={ROW - PROMPT}", f"data.train_batch_size={case.ranks}"),
            f"actor_rollout_ref.actor.ppo_mini_batch_size={case.ranks}",
            *(f"actor_rollout_ref.rollout.n={case.rows}", *case.words),
        ]
    )


def _measure(case: Case, config: Any, small: Any, *, ranks: Any) -> dict[str, int]:
    """Peaks of a step with `config`, above the process after a step with a `small` model."""
    set_one_thread()
    # what the process takes for code, such as peft's or the compiler's, is not the model's
    _train(case, small, ranks=ranks, vocabulary=SMALL_VOCABULARY)
    gc.collect()
    before = resident_bytes()
    engine, actor, batch, acting = _train(
        case, config, ranks=ranks, vocabulary=case.model["vocab_size"]
    )
    metered = MeteredEngine(engine, before=before)
    actor.engine = metered
    actor.update(batch)
    del acting  # measured with the others
    return metered.peaks


def _train(case: Case, config: Any, *, ranks: Any, vocabulary: int) -> tuple[Any, ...]:
    """Train for a step, which makes the moments; returns the engine, its actor, the rows and the
    acting copy.
    """
    import torch

    from siirl.dag_worker.text_components import TextBuilder
    from siirl.engine.training.weight_sync import ActingModule

    builder = TextBuilder(config, QUESTIONS, ranks=ranks, device=torch.device("cpu"))
    model = builder.load()
    acting = builder.acting(model)
    engine = builder.engine(model, trained=True)
    if acting is not model:
        ActingModule(acting, trained=engine.module).take_weights(engine.weights_in_turn())
    actor = builder.actor(engine)
    batch = rows_of_text(case, rank=ranks.rank, vocabulary=vocabulary)
    batch["rollout_log_probs"] = actor.compute_log_prob(batch).log_probs_BT
    actor.update(batch)
    batch["rollout_log_probs"] = actor.compute_log_prob(batch).log_probs_BT
    return engine, actor, batch, acting


class MeteredEngine:
    """An engine, and the peak of each phase of its optimiser steps above `before` bytes."""

    def __init__(self, engine: Any, *, before: int) -> None:
        self.engine, self.before = engine, before
        self.ranks = engine.ranks
        self.peaks: dict[str, int] = {}

    def train_batch(self, *arguments: Any, **options: Any) -> Any:
        """See `TrainEngine.train_batch`."""
        reset_peak()
        loss = self.engine.accumulate_gradient(*arguments, **options)
        self.peaks["update"] = peak_bytes() - self.before
        reset_peak()
        step = self.engine.apply_gradient(loss)
        self.peaks["optimiser's step"] = peak_bytes() - self.before
        return step


def rows_of_text(case: Case, *, rank: int, vocabulary: int) -> Any:
    """Rows of the longest possible length, with an advantage each."""
    import torch
    from tensordict import TensorDict

    generator = torch.Generator().manual_seed(rank)
    shape = (case.rows, ROW)
    ids = torch.randint(vocabulary, shape, generator=generator)
    columns = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "prompts": ids[:, :PROMPT],
        "responses": ids[:, PROMPT:],
        "response_mask": torch.ones(case.rows, ROW - PROMPT),
        "advantages": torch.randn(case.rows, 1, generator=generator).expand(-1, ROW - PROMPT),
        "policy_version": torch.zeros(case.rows, dtype=torch.long),
    }
    return TensorDict(columns, batch_size=[case.rows])


if __name__ == "__main__":
    main()
