"""Tokens per second of the text engines, over sizes of model and batch, against transformers'
`generate`.

    python -m benchmarks.text_engines --output benchmarks/results/text_engines.json

Every contender continues the same prompts, each for a group of rollouts, on one thread, in one
session, in turns. Two kinds of lengths: `even`, where all continuations have the same length, which
is the best case of `generate`; and `ragged`, where lengths spread evenly between one token and
twice the mean, as answers of a policy do: `generate` continues until the longest has ended. Tokens
after a row's end do not count. Weights are random; speed does not depend on them.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measured_on import describe_machine
from siirl.engine.rollout.generation import GenerationRequest, TextEngine
from siirl.engine.rollout.hf.hf_engine import HFEngine
from siirl.engine.rollout.vllm.vllm_engine import VLLMEngine
from siirl.models.chat import ChatTokenizer
from siirl.models.language_model import LanguageModel
from siirl.models.tiny_lm import TinyLMShape, new_tiny_lm, tiny_tokenizer

SHAPES = {
    "0.7M": TinyLMShape(),
    "25M": TinyLMShape(width=512, layers=8, heads=8, feed_forward=1536),
}
GROUP = 8  # rollouts of a prompt


@dataclass(frozen=True)
class Load:
    """Prompts, and the number of tokens to generate for each."""

    prompts: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


def make_load(*, batch: int, prompt: int, mean: int, ragged: bool) -> Load:
    """`batch` rows in groups of one prompt."""
    generator = np.random.default_rng(batch)
    prompts = [
        tuple(generator.integers(32, 127, prompt).tolist()) for _ in range(-(-batch // GROUP))
    ]
    spread = generator.permutation(np.linspace(1, 2 * mean - 1, batch).round().astype(int)).tolist()
    return Load(
        tuple(prompts[row // GROUP] for row in range(batch)),
        tuple(spread if ragged else [mean] * batch),
    )


def by_engine(engine: TextEngine) -> Callable[[Load], int]:
    """All rows at once, as episodes ask."""

    async def everybody(load: Load) -> int:
        requests = [
            GenerationRequest(
                uid=f"{row:05d}", input_ids=prompt, max_new_tokens=length, seed=(row,)
            )
            for row, (prompt, length) in enumerate(zip(load.prompts, load.lengths, strict=True))
        ]
        return sum(
            len(answer.tokens) for answer in await asyncio.gather(*map(engine.agenerate, requests))
        )

    return lambda load: asyncio.run(everybody(load))


def by_generate(model: LanguageModel) -> Callable[[Load], int]:
    """One call for all rows, as long as the longest wants."""

    def run(load: Load) -> int:
        ids = torch.tensor(load.prompts)
        options = {
            "do_sample": True,
            "top_k": 0,
            "max_new_tokens": max(load.lengths),
            "eos_token_id": None,
        }
        with torch.inference_mode():
            model.causal_lm.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return load.tokens

    return run


def without_end() -> ChatTokenizer:
    """The shipped tokenizer without an end token: the load decides the lengths."""
    tokenizer = ChatTokenizer(tiny_tokenizer())
    tokenizer.stop_ids = frozenset()
    return tokenizer


def measure(size: str, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """All contenders with one size of model, in turns; the first turn of each is not counted."""
    model, tokenizer = LanguageModel(new_tiny_lm(seed=0, shape=SHAPES[size]).eval()), without_end()
    settings: dict[str, Any] = {
        "model": model,
        "tokenizer": tokenizer,
        "temperature": 1.0,
        "max_running": max(flags.batches),
        "lockstep": False,
    }
    engines: dict[str, TextEngine] = {name: ENGINES[name](**settings) for name in flags.engines}
    contenders = {
        "transformers generate": by_generate(model),
        **{name: by_engine(engine) for name, engine in engines.items()},
    }
    rows: list[dict[str, Any]] = []
    for batch in flags.batches:
        for ragged in (False, True):
            load = make_load(batch=batch, prompt=flags.prompt, mean=flags.tokens, ragged=ragged)
            rates: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(flags.rounds + 1):
                for name, run in contenders.items():
                    begin = time.perf_counter()
                    tokens = run(load)
                    rates[name].append(tokens / (time.perf_counter() - begin))
            row = {"model": size, "batch": batch, "lengths": "ragged" if ragged else "even"}
            row["tokens_per_s"] = {
                name: [round(rate) for rate in values[1:]] for name, values in rates.items()
            }
            rows.append(row)
            print(
                f"{size} batch {batch} {row['lengths']}: {medians(row['tokens_per_s'])} tokens/s",
                flush=True,
            )
    for engine in engines.values():
        engine.close()
    return rows


ENGINES: dict[str, Callable[..., TextEngine]] = {"hf": HFEngine, "vllm": VLLMEngine}


def medians(rates: dict[str, Sequence[float]]) -> dict[str, float]:
    """The middle of each contender's rounds."""
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES), help="models")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        default=list(ENGINES),
        help="beside transformers' generate",
    )
    parser.add_argument(
        "--batches",
        nargs="+",
        type=int,
        default=[8, 64, 256],
        help="rows that are continued at once",
    )
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="mean tokens of a continuation")
    parser.add_argument("--rounds", type=int, default=5, help="turns that count")
    parser.add_argument("--output", type=Path, help="JSON file")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for size in flags.sizes for row in measure(size, flags)]
    if flags.output is not None:
        settings = {name: value for name, value in vars(flags).items() if name != "output"}
        command = " ".join(["python -m benchmarks.text_engines", *sys.argv[1:]])
        result = {
            "command": command,
            "machine": describe_machine(),
            "settings": settings,
            "rows": rows,
        }
        flags.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
