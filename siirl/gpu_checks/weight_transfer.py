"""Checksums of weights on CPU and device, and the transfer of weights to acting copies."""

import asyncio
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch

from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.engine.rollout.vllm.vllm_probe import next_token_logits, trained_probe
from siirl.engine.rollout.vllm.vllm_settings import PROBE_TOLERANCE
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_buckets import BUCKET_BYTES
from siirl.engine.training.weight_sync import WeightSync, acting_copy
from siirl.gpu_checks.arrived_weights import change, require_arrived
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.receiving_process import ReceivingProcess
from siirl.gpu_checks.shapes import QWEN_1_5B, SMALL
from siirl.models.adapters import adapters_first
from siirl.models.chat import load_chat_tokenizer
from siirl.models.checksum import RunningChecksum, checksum
from siirl.models.language_model import LanguageModel, load_language_model
from siirl.models.weight_rows import in_rows
from siirl.params import OptimizerArguments

if TYPE_CHECKING:  # imports Gymnasium
    from siirl.engine.rollout.vllm.async_vllm_engine import AsyncVLLMEngine

TINY_LM = "assets/tiny_lm"


class _PlaceholderEngine:
    """Placeholder for an engine that stores the version of the weights."""

    version = -1

    def update_weights(self, version: int) -> None:
        self.version = version


def equal_checksums(trial: Trial) -> None:
    """The checksum does not depend on device or number of threads, but on every bit."""
    entries = 50_000_000 if trial.on_gpu else 100_000
    for dtype in (torch.float32, torch.bfloat16):
        tensors = {"weight": torch.randn(entries).to(dtype), "odd": torch.randn(37, 3).to(dtype)}
        here = checksum(tensors)
        there = checksum({name: tensor.to(trial.device) for name, tensor in tensors.items()})
        trial.require(
            here == there,
            f"checksum {here} on the CPU and {there} on {trial.device} of {dtype} weights",
        )
        _require_changes(trial, dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    two = checksum(tensors)
    torch.set_num_threads(threads)
    trial.require(two == here, f"checksum {here} on {threads} threads and {two} on two")
    trial.note(entries=entries)


def _require_changes(trial: Trial, dtype: torch.dtype) -> None:
    """All bits and places count, and so do changes of all entries, as by a sum over two ranks in
    place of their mean; how weights are cut does not.
    """
    size = 1 << 22 if trial.on_gpu else 1 << 20  # more than is summed at a time
    weight = torch.rand(size).to(dtype) + 1
    weight[0], weight[-1] = 0.5, 0.25
    width, whole = weight.element_size(), {"weight": weight.to(trial.device)}
    changed = {"all were doubled": 2 * weight, "two were exchanged": weight.clone()}
    changed["two were exchanged"][[0, -1]] = weight[[-1, 0]]
    for bit in range(8 * width):
        flipped = weight.clone()
        place = bit * (size - 1) // (8 * width - 1)  # from the first to the last
        flipped.view(torch.uint8)[place * width + bit // 8] ^= 1 << bit % 8
        changed[f"bit {bit} of one changed"] = flipped
    before = checksum(whole)
    for what, values in changed.items():
        trial.require(
            checksum({"weight": values.to(trial.device)}) != before,
            f"the checksum of {dtype} weights stays although {what}",
        )
    trial.require(
        checksum({"other": whole["weight"]}) != before,
        f"the checksum of {dtype} weights does not depend on their names",
    )
    parts = [*in_rows(whole.items(), most_bytes=size)]
    cut = RunningChecksum(reversed(parts)).value
    trial.require(
        cut == before, f"{dtype} weights have the checksum {before}, in {len(parts)} parts {cut}"
    )


def to_acting_copy(trial: Trial) -> None:
    """Weights reach a copy in the dtype of the passes, as on several ranks."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {**SMALL, "vocab_size": 300}
    if trial.on_gpu:
        shape = {**QWEN_1_5B, "tie_word_embeddings": False}
    with torch.device(trial.device):
        model = LanguageModel(Qwen2ForCausalLM(Qwen2Config(**shape)).eval())
    copied = acting_copy(model, torch.bfloat16, device=trial.device)
    sync = _weight_sync(trial, model, acting=copied, engine=_PlaceholderEngine())
    for _ in range(2):  # the second one leaves out what the copy has
        _timed_sync(trial, model, sync)
        require_arrived(model, copied)


def to_process(trial: Trial) -> None:
    """Weights reach a process that maps the sender's buckets, as vLLM's workers do."""
    entries, bucket_bytes = (500_000_000, BUCKET_BYTES) if trial.on_gpu else (10_000, 4096)
    weights = {
        f"layer_{number}": torch.randn(entries // 40, 10, device=trial.device).to(trial.dtype)
        for number in range(4)
    }
    seconds = []
    with ReceivingProcess(trial.device, bucket_bytes=bucket_bytes) as receiver:
        for _ in range(2):  # the first also starts the other process
            begin = time.perf_counter()
            receiver.take_weights(in_rows(weights.items()))
            seconds.append(time.perf_counter() - begin)
            sent = checksum(weights)
            trial.require(
                receiver.arrived == sent,
                f"weights with the checksum {sent} were sent, but {receiver.arrived} arrived",
            )
            for weight in weights.values():
                weight.add_(0.5)
    size = sum(weight.nbytes for weight in weights.values())
    trial.note(bytes=size, seconds=seconds[-1], gb_per_s=size / seconds[-1] / 1e9)


def to_vllm(trial: Trial) -> None:
    """Weights of the shipped model reach vLLM's own process, before and after it has slept and
    during an answer, and vLLM answers with them.
    """
    from siirl.engine.rollout.vllm.async_vllm_engine import AsyncVLLMEngine

    model = load_language_model(TINY_LM).to(trial.device)
    tokenizer = load_chat_tokenizer(TINY_LM)
    engine = AsyncVLLMEngine(
        model=model,
        tokenizer=tokenizer,
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        max_running=8,
        lockstep=False,
        compute_dtype=trial.dtype if trial.on_gpu else None,
        kv_cache_gib=0.25,
        num_gpus=1,
        longest_text=64,
        exchanges=True,
    )
    try:
        _timed_sync(trial, model, _weight_sync(trial, model, acting=engine, engine=engine))
        free = _free_bytes(trial)
        engine.rest()
        trial.note(freed_bytes_by_sleep=_free_bytes(trial) - free)
        _timed_sync(trial, model, _weight_sync(trial, model, acting=engine, engine=engine))
        request = GenerationRequest("1", tuple(b"12+30="), max_new_tokens=8, seed=(0, 0))
        require_whole(trial, asyncio.run(engine.agenerate(request)), tokenizer.stop_ids, most=8)
        asyncio.run(_exchange(trial, engine))
    finally:
        engine.close()


async def _exchange(trial: Trial, engine: "AsyncVLLMEngine") -> None:
    """Replace vLLM's weights during an answer, from host memory as on a rollout rank; raise if
    tokens after that have other log-probs than in training.
    """
    request = GenerationRequest("2", tuple(b"17+25="), max_new_tokens=48, seed=(0, 0))
    running = asyncio.create_task(engine.agenerate(request))
    await asyncio.sleep(0)  # vLLM gets the request
    change(engine.model)
    weights = {name: weight.cpu() for name, weight in engine.model.state_dict().items()}
    settings: dict[str, Any] = {
        "temperature": engine.temperature,
        "compute_dtype": engine.dtype,
        "device": engine.device,
    }
    probe = trained_probe(
        engine.model, vocab_size=engine.tokenizer.vocab_size, longest=engine.longest, **settings
    )
    begin = time.perf_counter()
    engine.replace_weights(in_rows(adapters_first(weights)), version=1, probe=probe)
    trial.note(exchange_seconds=time.perf_counter() - begin)
    answer = await running
    assert engine.verification is not None
    engine.verification.result()
    new = answer.versions == 1
    trial.require(new.any(), "vLLM generated no token with weights that arrived during an answer")
    ids = torch.tensor([[*request.input_ids, *answer.tokens]], device=engine.device)
    logits = next_token_logits(engine.model, ids, compute_dtype=engine.dtype)
    log_probs = torch.log_softmax(logits, dim=-1).gather(-1, ids[0, 1:, None])[-len(new) :, 0]
    gap = abs(float(answer.log_probs[new].mean() - log_probs.cpu().numpy()[new].mean()))
    trial.require(
        gap <= PROBE_TOLERANCE[engine.dtype],
        f"tokens after new weights have log-probs that differ by {gap:.3g} from training",
    )
    trial.note(tokens_of_new_weights=int(new.sum()), gap_after_exchange=gap)


def require_whole(
    trial: Trial, answer: GenerationResponse, stop_ids: Collection[int], *, most: int
) -> None:
    """Require `most` tokens, or fewer of which the last one ends the turn."""
    tokens = answer.tokens.tolist()
    trial.require(
        len(tokens) == most or (0 < len(tokens) < most and tokens[-1] in stop_ids),
        f"vLLM answered {len(tokens)} tokens of {most}, and the last one ends no turn",
    )


def _free_bytes(trial: Trial) -> int:
    """Memory of the GPU that no process holds; 0 on a CPU."""
    return torch.cuda.mem_get_info(trial.device)[0] if trial.on_gpu else 0


def _weight_sync(
    trial: Trial, model: LanguageModel, *, acting: object, engine: object
) -> WeightSync:
    """The sync of a run that trains `model` on one rank."""
    trained = TrainEngine(
        module=model,
        scorer=text_scorer,
        optim=OptimizerArguments(scheduler="constant"),
        device=trial.device,
    ).initialize()
    return WeightSync(
        trained=trained,
        acting=acting,  # type: ignore[arg-type]
        engine=engine,  # type: ignore[arg-type]
        ranks=OneProcess(),
    )


def _timed_sync(trial: Trial, model: LanguageModel, sync: WeightSync) -> None:
    """Change all weights, transfer them, and record the time; raise if they differ."""
    change(model)
    begin = time.perf_counter()
    sync.sync()
    trial.wait_for_device()
    seconds = time.perf_counter() - begin
    size = sum(weight.nbytes for weight in model.parameters())
    trial.note(trained_bytes=size, seconds=seconds, gb_per_s=size / seconds / 1e9)
