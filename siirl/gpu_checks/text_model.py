"""Qwen2.5-7B at its published size: generation, and GRPO updates of adapters and of all weights."""

import asyncio
import time
from typing import Any

import torch

from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.rollout.generation import GenerationRequest
from siirl.engine.rollout.hf.hf_engine import HFEngine
from siirl.engine.training.device_peaks import peak_of
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.planned_memory import compare_with_peak, planned_bytes, require_room
from siirl.gpu_checks.shapes import decoder_config, language_model, texts
from siirl.gpu_checks.updates import engine_of, timed_update
from siirl.models.chat import load_chat_tokenizer
from siirl.models.flops import ADAPTERS, TRAINED_WEIGHTS, decoder_flops
from siirl.params.data_args import DataArguments
from siirl.params.model_args import LoraArguments, ModelArguments
from siirl.preflight.model_shapes import decoder_shape

TINY_LM = "assets/tiny_lm"  # provides the tokens that end a turn
ROWS_OF_A_PASS = 4


def generation(trial: Trial) -> None:
    """Tokens/s of many answers at once, sampled by siirl's own engine."""
    rows, prompt, answer = (64, 256, 128) if trial.on_gpu else (4, 8, 4)
    model = language_model(trial)
    engine = HFEngine(model=model, tokenizer=load_chat_tokenizer(TINY_LM), max_running=rows)

    def generate(longest: int) -> int:
        return sum(len(found.tokens) for found in asyncio.run(_everybody(engine, longest)))

    async def _everybody(engine: HFEngine, longest: int) -> list[Any]:
        ids = torch.randint(5, 200, (rows, prompt)).tolist()
        return await asyncio.gather(
            *(
                engine.agenerate(GenerationRequest(str(row), tuple(ids[row]), longest, (0, row)))
                for row in range(rows)
            )
        )

    generate(2)
    trial.wait_for_device()
    begin = time.perf_counter()
    tokens = generate(answer)
    trial.wait_for_device()
    seconds = time.perf_counter() - begin
    trial.note(tokens_per_s=tokens / seconds, answers=rows, peak_bytes=trial.peak_bytes())


def update_adapters(trial: Trial) -> None:
    """A GRPO update of adapters."""
    _update(trial, LoraArguments(rank=32 if trial.on_gpu else 2))


def update_all(trial: Trial) -> None:
    """A GRPO update of all weights, if it fits by the plan."""
    _update(trial, LoraArguments())


def _update(trial: Trial, lora: LoraArguments) -> None:
    """The second of two updates on answers of 1024 tokens; activations are kept if they fit."""
    rows, prompt, answer = (8, 256, 1024) if trial.on_gpu else (2, 6, 6)

    def planned(*, recompute: bool) -> float:
        return planned_bytes(
            decoder_shape(decoder_config(trial)),
            ModelArguments(dtype=trial.dtype_name, gradient_checkpointing=recompute, lora=lora),
            data=DataArguments(max_prompt_length=prompt, max_response_length=answer),
            micro_batch_size=ROWS_OF_A_PASS,
            compiled=trial.compiler is not None,
        )

    require_room(trial, planned(recompute=True))
    recompute = not trial.on_gpu or planned(recompute=False) > trial.free_bytes()
    trial.note(recomputes=recompute, compiled=trial.compiler is not None)
    model = language_model(trial, lora=lora, recompute=recompute)
    engine = engine_of(
        model,
        text_scorer,
        device=trial.device,
        dtype=trial.dtype,
        micro_batch_size=ROWS_OF_A_PASS,
        compiler=trial.compiler,
    )
    most = 200
    batch = texts(
        torch.randint(5, most, (rows, prompt)).tolist(),
        torch.randint(5, most, (rows, answer)).tolist(),
    )
    seconds = timed_update(trial, engine, batch)
    length = prompt + answer
    flops = (ADAPTERS if lora.rank else TRAINED_WEIGHTS) * decoder_flops(
        model.config, tokens=rows * length, pairs=rows * length**2, head_tokens=rows * answer
    )
    trial.note(tokens_per_s=rows * length / seconds, tflops=flops / seconds / 1e12)
    peak = peak_of(trial.device, trial.dtype)
    if peak is not None:
        trial.note(mfu=flops / seconds / peak)
    compare_with_peak(trial, planned(recompute=recompute))
