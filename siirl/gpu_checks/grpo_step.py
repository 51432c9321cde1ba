"""Whole steps of GRPO on text, as `siirl train pipeline=grpo env=math cluster=local` runs them.

    choose the largest shape whose job fits by the plan
    write it with random weights, as a downloaded model is read
    read, check and prepare the job's configuration
    run two steps: generation, reward, advantages, update, sync
    record seconds, tokens/s, MFU of the update and shares of the second step

Random weights hardly ever end an answer, so every answer has the full length. A function of the
answer's letters is the reward, so that the answers to a prompt differ in it. The first step has
start-up costs of compilers. The run ends before its checkpoint, which other checks write.
"""

import gc
import importlib.util
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siirl.dag_worker.events import StepDone
from siirl.gpu_checks import parity_reward
from siirl.gpu_checks.check import CheckSkipped, Trial
from siirl.gpu_checks.disk_room import require_disk
from siirl.gpu_checks.random_model import write_model
from siirl.gpu_checks.shapes import QWEN_1_5B, QWEN_7B, SMALL
from siirl.jobs.training_run import layout_of, start
from siirl.params.env_spec import describe_env
from siirl.params.parser import ParsedConfig, parse
from siirl.preflight.early_checks import check_early
from siirl.preflight.gpu_fit import USABLE
from siirl.preflight.model_shapes import decoder_shape
from siirl.preflight.prepare import prepare
from siirl.preflight.rank_memory import rank_memory

STEPS = 2
ROLLOUTS = 8  # of a prompt
TOKENS_OF_A_PASS = 4096
STEP_S, START_OF_VLLM_S = 100.0, 60.0  # estimated for 7B: writing, reading, compiling, two steps
KV_CACHE_GIB, SMALL_CACHE_GIB = 8, 0.25  # 128 answers of 768 tokens at 57 kB; on a CPU
SMALLEST: dict[str, Any] = {
    **SMALL,
    **{"vocab_size": 400, "hidden_size": 64, "max_position_embeddings": 512},  # heads for vLLM
}
PARTS = {
    "rollout": "time/rollout_actor_s",
    "reward": "time/function_reward_s",
    "advantages": "time/calculate_advantages_s",
    "update": "time/actor_train_s",
    "sync": "time/sync_weights_s",
}


@dataclass(frozen=True)
class Candidate:
    """A model to train."""

    name: str
    shape: dict[str, Any]
    adapters: int = 0
    """Rank of adapters; 0: all weights are trained."""

    @property
    def file_bytes(self) -> float:
        """Size of the written model."""
        shape = decoder_shape({"model_type": "qwen2", **self.shape})
        assert shape is not None
        return 2.0 * shape.parameters


FULL_7B = Candidate("Qwen2.5-7B, all weights", QWEN_7B)
LORA_7B = Candidate("Qwen2.5-7B, adapters", QWEN_7B, adapters=32)
FULL_1_5B = Candidate("Qwen2.5-1.5B, all weights", QWEN_1_5B)
ON_A_CPU = Candidate("small, all weights", SMALLEST)


def step(trial: Trial) -> None:
    """Steps with siirl's own engine, in whose module training and generation share weights."""
    _require_time(trial, STEP_S)
    _steps(trial, "hf", answer=256 if trial.on_gpu else 8)


def step_with_vllm(trial: Trial) -> None:
    """Steps with vLLM in a process beside the training one."""
    _require_time(trial, STEP_S + START_OF_VLLM_S)
    _steps(trial, "vllm", answer=512 if trial.on_gpu else 8)


def candidates(trial: Trial) -> list[Candidate]:
    """Models to train here, the preferred ones first."""
    if not trial.on_gpu:
        return [ON_A_CPU]
    adapts = importlib.util.find_spec("peft") is not None
    return [*([LORA_7B] if adapts else []), FULL_7B, FULL_1_5B]


def _require_time(trial: Trial, seconds: float) -> None:
    """Skip the check on a GPU if it would be killed before its second step."""
    if trial.on_gpu and trial.left_s() < seconds:
        raise CheckSkipped(
            f"{trial.left_s():.0f} s are left, and it takes about {seconds:.0f} s: raise --minutes "
            "or use --only"
        )


def _steps(trial: Trial, engine: str, *, answer: int) -> None:
    with tempfile.TemporaryDirectory(prefix="siirl-grpo-") as name:
        folder = Path(name)
        chosen, parsed = choose(
            [
                (each, job(trial, each, engine, answer=answer, folder=folder))
                for each in candidates(trial)
            ],
            room=USABLE * trial.free_bytes(),
        )
        trial.note(
            model=chosen.name, compiled=parsed.config.actor_rollout_ref.actor.use_torch_compile
        )
        require_disk(folder, chosen.file_bytes)
        write_model(folder / "model", chosen.shape, trial.device)
        gc.collect()
        trial.forget_peak()  # the job finds the GPU empty
        _run(trial, parsed, folder)


def choose(
    jobs: Sequence[tuple[Candidate, Sequence[str]]], *, room: float
) -> tuple[Candidate, ParsedConfig]:
    """The first candidate whose job fits into `room` bytes by the plan, and its configuration.

    Raises:
        CheckSkipped: None fits.
    """
    needs = {}
    for candidate, overrides in jobs:
        parsed = parse(overrides)
        table = rank_memory(
            parsed.config,
            describe_env(parsed.config),
            shape=decoder_shape({"model_type": "qwen2", **candidate.shape}),
        )
        assert table is not None, "the shapes are known"
        _, needed = table.peak
        if needed <= room:
            return candidate, parsed
        needs[candidate.name] = needed
    told = ", ".join(f"{name} {needed / 1e9:.0f} GB" for name, needed in needs.items())
    raise CheckSkipped(f"by the plan it needs more than {room / 1e9:.0f} GB: {told}")


def job(trial: Trial, candidate: Candidate, engine: str, *, answer: int, folder: Path) -> list[str]:
    """Settings of the run, as on the command line.

    Args:
        trial: The check.
        candidate: The model.
        engine: The rollout engine.
        answer: Tokens of an answer.
        folder: Folder of the model and the run.
    """
    prompts = 16 if trial.on_gpu else 2
    settings = [
        *("pipeline=grpo", "env=math", "model=causal_lm", f"rollout={engine}", "cluster=local"),
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"actor_rollout_ref.model.dtype={trial.dtype_name}",
        f"actor_rollout_ref.rollout.n={ROLLOUTS}",
        f"custom_reward_function.path={parity_reward.__file__}",
        "custom_reward_function.name=varied",
        f"data.train_batch_size={prompts}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}",
        *("data.max_prompt_length=256", f"data.max_response_length={answer}"),
        f"trainer.total_steps={STEPS}",
        *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        *("trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.max_minutes=null"),
        f"trainer.output_dir={folder}",
    ]
    if trial.on_gpu:
        settings += [
            f"env.envs_per_server={prompts * ROLLOUTS}",
            "actor_rollout_ref.model.gradient_checkpointing=true",
            f"actor_rollout_ref.actor.use_torch_compile={str(trial.compiler is not None).lower()}",
            f"actor_rollout_ref.actor.micro_batch_tokens={TOKENS_OF_A_PASS}",
        ]
    if engine == "vllm":
        settings.append("actor_rollout_ref.rollout.mode=async")  # in a process of its own
        cache = KV_CACHE_GIB if trial.on_gpu else SMALL_CACHE_GIB
        settings.append(f"actor_rollout_ref.rollout.kv_cache_gib={cache}")
    if candidate.adapters:
        settings.append(f"actor_rollout_ref.model.lora.rank={candidate.adapters}")
    return settings


def _run(trial: Trial, parsed: ParsedConfig, folder: Path) -> None:
    """Run the steps as the command does, up to the checkpoint of the last one."""
    config = parsed.config
    prepared = prepare(config, check_early(config, named=parsed.named))
    run_folder, stacks_folder = folder / "run", folder / "stacks"
    run_folder.mkdir()
    stacks_folder.mkdir()
    layout = layout_of(config, prepared.graph)
    with closing(start(config, prepared.graph, run_folder, layout, stacks_folder)) as events:
        for event in events:
            if isinstance(event, StepDone):
                note_step(trial, event, answers=config.data.train_batch_size * ROLLOUTS)
                if event.step == STEPS:
                    break


def note_step(trial: Trial, done: StepDone, *, answers: int) -> None:
    """Record a step's figures, and fail if it was not a whole one."""
    found = {name: value for name, value in done.metrics.items() if isinstance(value, float)}
    seconds = found["time/step_s"]
    shares = {part: found[name] / seconds for part, name in PARTS.items()}
    generated = answers * found["rollout/avg_response_length"]
    trial.note(
        step=done.step,
        seconds=seconds,
        tokens_per_s=found["perf/throughput"],
        generated_per_s=generated / found[PARTS["rollout"]],
        update_tflops=found["perf/update_tflops_per_s"],
        sync_bytes=found["sync/bytes"],
        shares={**shares, "other": 1 - sum(shares.values())},
    )
    if "perf/mfu" in found:
        trial.note(mfu=found["perf/mfu"])
    if "memory/gpu_peak_bytes" in found:
        trial.note(peak_gb=found["memory/gpu_peak_bytes"] / 1e9)
    trial.require(
        found["actor/updates"] == 1 and found["actor/grad_norm"] > 0,
        f"step {done.step} had {found['actor/updates']:g} updates, with the gradient norm "
        f"{found['actor/grad_norm']:g}",
    )
    trial.require(
        found["actor/weights_unchanged"] == 0,
        f"after step {done.step} the acting weights have the same checksum as before it, although "
        f"the optimiser stepped with the gradient norm {found['actor/grad_norm']:g}",
    )
    trial.require(
        found["policy/version"] == done.step,
        f"after step {done.step} the weights of step {found['policy/version']:g} act",
    )
