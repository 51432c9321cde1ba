"""rollout=server against rollout=vllm: the same vLLM over HTTP and in a process of the run.

    python -m benchmarks.inference_server --output benchmarks/results/inference_server.json

Tokens per second of both on the prompts of `benchmarks.text_engines`, and seconds of a sync of all
weights: through shared memory (rollout=vllm), through the folder in /dev/shm, and by a collective.
One thread per process, in one session, in turns; the ratio is that of neighbouring turns.
Weights are random. Left out: GPUs, and servers on another machine.
"""

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measured_on import describe_machine
from benchmarks.text_engines import SHAPES, by_engine, make_load, without_end
from benchmarks.vllm_server import free_port, vllm_server
from siirl.engine.rollout.server.server_engine import ServerEngine, WeightRoute
from siirl.engine.rollout.server.server_link import ServerLink
from siirl.engine.rollout.server.weight_folder import FolderRoute
from siirl.engine.rollout.server.weight_group import GroupRoute
from siirl.engine.rollout.vllm.async_vllm_engine import AsyncVLLMEngine
from siirl.models.language_model import LanguageModel
from siirl.models.tiny_lm import new_tiny_lm
from siirl.models.weight_rows import in_rows

DEADLINE_S = 600.0
SHARED = "vllm, shared memory"
OWN, OVER_HTTP = "rollout=vllm, mode=async", "rollout=server"


def seconds(work: Callable[[], Any]) -> float:
    """How long `work` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(size: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Rates and syncs of both engines with one size of model."""
    model, tokenizer = LanguageModel(new_tiny_lm(seed=0, shape=SHAPES[size]).eval()), without_end()
    longest = flags.prompt + 2 * flags.tokens
    settings: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "temperature": 1.0}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model.save(place)
        tokenizer.save(place)
        with vllm_server(folder, port=free_port(), log=place / "log", longest=longest) as url:
            link = ServerLink(url, token=None, deadline_s=DEADLINE_S)
            routes: dict[str, WeightRoute] = {
                "server, folder": FolderRoute(None),
                "server, collective": GroupRoute(timeout_s=DEADLINE_S),
            }
            server = ServerEngine(**settings, link=link, route=routes["server, folder"])
            own = AsyncVLLMEngine(
                **settings,
                max_running=256,
                lockstep=False,
                kv_cache_gib=0.5,
                longest_text=longest,
            )
            try:
                return {
                    "model": size,
                    "rates": _rates({OWN: own, OVER_HTTP: server}, flags),
                    "sync_s": _syncs(model, own, server, routes, rounds=flags.rounds),
                }
            finally:
                own.close()
                server.close()


def _rates(engines: dict[str, Any], flags: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for batch in flags.batches:
        load = make_load(batch=batch, prompt=flags.prompt, mean=flags.tokens, ragged=True)
        runs = {
            name: functools.partial(by_engine(engine), load) for name, engine in engines.items()
        }
        rates: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(flags.rounds + 1):  # the first is not counted
            for name, run in runs.items():
                rates[name].append(load.tokens / seconds(run))
        row = {
            "batch": batch,
            "tokens_per_s": {name: [round(rate) for rate in of[1:]] for name, of in rates.items()},
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def _syncs(
    model: LanguageModel,
    own: AsyncVLLMEngine,
    server: ServerEngine,
    routes: dict[str, WeightRoute],
    *,
    rounds: int,
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in (SHARED, *routes)}

    def sync(engine: AsyncVLLMEngine | ServerEngine) -> None:
        pairs = engine.take_weights(in_rows(model.state_dict().items()))
        assert pairs and all(pair.agrees for pair in pairs), pairs

    for _ in range(rounds):
        found[SHARED].append(seconds(lambda: sync(own)))
        for name, route in routes.items():
            server.route = route
            found[name].append(seconds(lambda: sync(server)))
    print({name: statistics.median(of) for name, of in found.items()}, flush=True)
    return {name: [round(each, 3) for each in of] for name, of in found.items()}


def ratios(models: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The server's rates and syncs by those of rollout=vllm, over neighbouring turns."""
    found = {}
    for of_model in models:
        for row in of_model["rates"]:
            name = f"tokens a second, server / vllm, {of_model['model']}, {row['batch']} rows"
            found[name] = _ratio(row["tokens_per_s"][OVER_HTTP], row["tokens_per_s"][OWN])
        syncs = dict(of_model["sync_s"])
        shared = syncs.pop(SHARED)
        for route, of_route in syncs.items():
            found[f"seconds of a sync, {route} / {SHARED}, {of_model['model']}"] = _ratio(
                of_route, shared
            )
    return found


def _ratio(above: list[float], below: list[float]) -> dict[str, float]:
    each = [a / b for a, b in zip(above, below, strict=True)]
    values = {"median": statistics.median(each), "least": min(each), "most": max(each)}
    return {name: round(value, 3) for name, value in values.items()}


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES), help="models")
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 64], help="rows at once")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="mean tokens of a continuation")
    parser.add_argument("--rounds", type=int, default=5, help="turns that count")
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--output", type=Path, help="JSON file")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    models = [measure(size, flags) for size in flags.sizes]
    if flags.output is not None:
        settings = {
            name: value for name, value in vars(flags).items() if name not in ("output", "note")
        }
        command = " ".join(["python -m benchmarks.inference_server", *sys.argv[1:]])
        result = {
            "command": command,
            "notice": f"The machine was {flags.note}." if flags.note else "",
            "machine": describe_machine(),
            "settings": settings,
            "models": models,
            "ratios": ratios(models),
        }
        flags.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
