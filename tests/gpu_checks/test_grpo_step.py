"""Whole GRPO steps of the check: which model is trained, and what a step must have done."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from siirl.dag_worker.events import StepDone
from siirl.gpu_checks.check import CheckFailed, CheckSkipped, Trial
from siirl.gpu_checks.grpo_step import (
    FULL_1_5B,
    FULL_7B,
    LORA_7B,
    PARTS,
    SMALLEST,
    STEPS,
    Candidate,
    choose,
    job,
    note_step,
    step,
    step_with_vllm,
)
from siirl.gpu_checks.random_model import write_model
from siirl.params.parser import parse
from siirl.preflight.early_checks import check_early
from siirl.preflight.prepare import prepare

GIGABYTE = 1_000_000_000
WHOLE = {
    **dict.fromkeys(PARTS.values(), 1.0),
    **{"time/step_s": 10.0, "perf/throughput": 100.0, "rollout/avg_response_length": 50.0},
    **{"perf/update_tflops_per_s": 1.0, "sync/bytes": 0.0, "policy/version": 1.0},
    **{"actor/updates": 1.0, "actor/grad_norm": 0.5, "actor/weights_unchanged": 0.0},
}


class OnGpu(Trial):
    """A check on a GPU."""

    on_gpu = True


def trial(folder: Path, kind: type[Trial] = Trial) -> Trial:
    return kind(torch.device("cpu"), time.monotonic() + 600, folder / "figures.json")


def test_steps_generate_reward_update_and_sync(tmp_path: Path) -> None:
    checked = trial(tmp_path)
    step(checked)
    assert checked.figures["step"] == STEPS
    assert checked.figures["tokens_per_s"] > 0
    assert checked.figures["update_tflops"] > 0
    shares = checked.figures["shares"]
    assert shares.keys() == {*PARTS, "other"}
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.slow  # starts vLLM
def test_steps_send_the_weights_to_vllm(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    checked = trial(tmp_path)
    step_with_vllm(checked)
    assert checked.figures["step"] == STEPS
    assert checked.figures["sync_bytes"] > 0


@pytest.mark.parametrize(
    ("gigabytes", "expected"), [(134, FULL_7B), (72, FULL_1_5B), (36, FULL_1_5B)]
)
def test_without_adapters_7_billion_weights_are_trained_where_they_fit(
    gigabytes: int, expected: Candidate, tmp_path: Path
) -> None:
    checked = trial(tmp_path, OnGpu)
    jobs = [
        (each, job(checked, each, "hf", answer=256, folder=tmp_path))
        for each in (FULL_7B, FULL_1_5B)
    ]
    assert choose(jobs, room=gigabytes * GIGABYTE)[0] == expected


def test_a_gpu_on_which_nothing_fits_is_a_skipped_row_with_the_numbers(tmp_path: Path) -> None:
    settings = job(trial(tmp_path, OnGpu), FULL_1_5B, "hf", answer=256, folder=tmp_path)
    with pytest.raises(CheckSkipped, match=r"more than 16 GB: Qwen2.5-1.5B, all weights 2\d GB"):
        choose([(FULL_1_5B, settings)], room=16 * GIGABYTE)


@pytest.mark.parametrize(("check", "seconds"), [(step, 100), (step_with_vllm, 160)])
def test_steps_that_would_not_end_in_time_are_skipped(
    check: Callable[[Trial], None], seconds: int, tmp_path: Path
) -> None:
    late = OnGpu(torch.device("cpu"), time.monotonic() + 60, tmp_path / "figures.json")
    with pytest.raises(CheckSkipped, match=rf"s are left, and it takes about {seconds} s: raise"):
        check(late)


@pytest.mark.parametrize("engine", ["hf", "vllm"])
@pytest.mark.parametrize("candidate", [LORA_7B, FULL_7B, FULL_1_5B], ids=lambda each: each.name)
def test_the_jobs_of_gpus_are_accepted(candidate: Candidate, engine: str, tmp_path: Path) -> None:
    """Their settings, here with a small model in the folder."""
    if engine == "vllm":
        pytest.importorskip("vllm")
    write_model(
        tmp_path / "model", {**SMALLEST, "max_position_embeddings": 4096}, torch.device("cpu")
    )
    parsed = parse(job(trial(tmp_path, OnGpu), candidate, engine, answer=256, folder=tmp_path))
    prepared = prepare(parsed.config, check_early(parsed.config, named=parsed.named))
    assert prepared.warnings == ()


def test_a_whole_step_has_shares_of_its_time(tmp_path: Path) -> None:
    checked = trial(tmp_path)
    note_step(checked, StepDone(1, dict(WHOLE)), answers=128)
    assert checked.figures["generated_per_s"] == 128 * 50
    assert checked.figures["shares"] == {**dict.fromkeys(PARTS, 0.1), "other": pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"actor/updates": 0.0}, "step 1 had 0 updates"),
        ({"actor/grad_norm": 0.0}, "the gradient norm 0"),
        (
            {"actor/weights_unchanged": 1.0},
            "after step 1 the acting weights have the same checksum",
        ),
        ({"policy/version": 0.0}, "after step 1 the weights of step 0 act"),
    ],
)
def test_a_step_without_update_or_sync_is_a_failure(
    changed: dict[str, float], told: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckFailed, match=told):
        note_step(trial(tmp_path), StepDone(1, WHOLE | changed), answers=128)
