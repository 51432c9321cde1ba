"""Speed and memory of the formulas of siirl.algos against straightforward implementations.

    python -m benchmarks.algorithms              # everything; about five minutes on one core
    python -m benchmarks.algorithms --rounds 1   # a quick look

One thread. Contenders take turns in rounds, so that other load on the machine affects all of them.
Times are processor time, with wall time beside it; ratios are taken within a round, and the median
is reported with its range. Log-probs run in a separate process for each contender and round, whose
peak memory, inputs and gradients included, is the operating system's figure. The baselines are
in `benchmarks.plain_algorithms`. The control is each baseline against itself: its ratio must be 1.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measured_on import describe_machine
from benchmarks.plain_algorithms import (
    gae_loop,
    group_advantages_by_floats,
    group_advantages_by_lists,
    karmarkar_karp_spread,
    scores_from_all_logits,
)
from siirl.algos.advantages import gae_advantage, grpo_advantage
from siirl.algos.linear_log_probs import linear_token_scores
from siirl.algos.log_probs import token_scores
from siirl.data_coordinator.balance import get_seqlen_balanced_partitions, spread

RESULTS = Path(__file__).parent / "results"
GAE_ROWS = GAE_TOKENS = 4096
GAMMA, LAM = 0.99, 0.95
SAMPLES, GROUP = 100_000, 8
VOCABULARY, HIDDEN, TOKENS = 150_000, 512, 2048
LOG_PROB_ROUNDS = 3  # memory is the same in each, and a round is a minute
PARTITIONS = ((5_000, 64), (100_000, 1024))

Seconds = dict[str, list[float]]


def take_turns(
    contenders: Mapping[str, Callable[[], Any]], *, rounds: int, warm_up: bool = True
) -> dict[str, Seconds]:
    """Processor and wall seconds of each contender in each round."""
    if warm_up:
        for contender in contenders.values():
            contender()
    seconds: dict[str, Seconds] = {
        "processor": {name: [] for name in contenders},
        "wall": {name: [] for name in contenders},
    }
    for _ in range(rounds):
        for name, contender in contenders.items():
            wall, processor = time.perf_counter(), time.process_time()
            contender()
            seconds["processor"][name].append(time.process_time() - processor)
            seconds["wall"][name].append(time.perf_counter() - wall)
    return seconds


def ratio(values: Mapping[str, list[float]], over: str, under: str) -> dict[str, Any]:
    """`over` in units of `under` within each round: median and range."""
    ratios = [high / low for high, low in zip(values[over], values[under], strict=True)]
    return {
        "of": over,
        "to": under,
        "median": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def aim(text: str, reached: bool) -> dict[str, Any]:
    """An aim and whether it was reached."""
    return {"aim": text, "reached": reached}


# GAE


def gae_section(rounds: int) -> dict[str, Any]:
    """Rows of all lengths, as responses have them, and rows with holes where tools spoke."""
    generator = torch.Generator().manual_seed(0)
    shape = (GAE_ROWS, GAE_TOKENS)
    values_BT = torch.randn(shape, generator=generator)
    lengths_B = torch.randint(1, GAE_TOKENS + 1, (GAE_ROWS,), generator=generator)
    ragged_BT = torch.arange(GAE_TOKENS) < lengths_B[:, None]
    holes_BT = ragged_BT & (torch.rand(shape, generator=generator) > 0.1)
    sections = {}
    for name, mask_BT in (("rows of all lengths", ragged_BT), ("rows with holes", holes_BT)):
        rewards_BT = torch.where(mask_BT, torch.randn(shape, generator=generator), torch.zeros(()))
        floats_BT = mask_BT.float()
        contenders = {
            "loop over time steps": lambda r=rewards_BT, m=floats_BT: gae_loop(
                r, values_BT, m, GAMMA, LAM
            ),
            "loop over time steps, again (control)": lambda r=rewards_BT, m=floats_BT: gae_loop(
                r, values_BT, m, GAMMA, LAM
            ),
            "the loop, time before batch in memory": lambda r=rewards_BT, m=floats_BT: gae_loop(
                time_major(r), time_major(values_BT), time_major(m), GAMMA, LAM
            ),
            "siirl": lambda r=rewards_BT, m=mask_BT: gae_advantage(
                rewards_BT=r, values_BT=values_BT, mask_BT=m, gamma=GAMMA, lam=LAM
            ),
        }
        seconds = take_turns(contenders, rounds=rounds)
        exact_BT, _ = gae_loop(
            rewards_BT.double(), values_BT.double(), floats_BT.double(), GAMMA, LAM
        )
        errors = {
            key: float((contenders[key]()[0] - exact_BT).abs().max())
            for key in ("loop over time steps", "siirl")
        }
        speed = ratio(seconds["processor"], "loop over time steps", "siirl")
        sections[name] = {
            "seconds": seconds,
            "speed": speed,
            "speed against time before batch": ratio(
                seconds["processor"], "the loop, time before batch in memory", "siirl"
            ),
            "control": ratio(
                seconds["processor"],
                "loop over time steps",
                "loop over time steps, again (control)",
            ),
            "largest error against float64": errors,
            "largest advantage": float(exact_BT.abs().max()),
        }
        if name == "rows of all lengths":
            sections[name] |= aim(
                "at least 5 times as fast, float32's own error",
                speed["median"] >= 5 and errors["siirl"] < 1e-4,
            )
    return sections


def time_major(values_BT: torch.Tensor) -> torch.Tensor:
    """The same tensor, copied so that a time step of all rows lies together: the cheapest thing to
    do for the loop.
    """
    return values_BT.t().contiguous().t()


# Group statistics


def groups_section(rounds: int) -> dict[str, Any]:
    """100,000 samples in groups of eight, in any order."""
    generator = torch.Generator().manual_seed(0)
    group_B = torch.arange(SAMPLES).div(GROUP, rounding_mode="floor")[
        torch.randperm(SAMPLES, generator=generator)
    ]
    rewards_B = torch.randn(SAMPLES, generator=generator)
    groups = group_B.tolist()
    contenders = {
        "dict of lists of tensors": lambda: group_advantages_by_lists(rewards_B, groups),
        "dict of lists of tensors, again (control)": lambda: group_advantages_by_lists(
            rewards_B, groups
        ),
        "dict of lists of floats": lambda: group_advantages_by_floats(rewards_B, groups),
        "siirl": lambda: grpo_advantage(rewards_B=rewards_B, group_B=group_B),
    }
    seconds = take_turns(contenders, rounds=rounds, warm_up=False)
    exact_B = group_advantages_by_floats(rewards_B.double(), groups)
    speed = ratio(seconds["processor"], "dict of lists of tensors", "siirl")
    return {
        "seconds": seconds,
        "speed": speed,
        "speed against floats": ratio(seconds["processor"], "dict of lists of floats", "siirl"),
        "control": ratio(
            seconds["processor"],
            "dict of lists of tensors",
            "dict of lists of tensors, again (control)",
        ),
        "largest error": {
            name: float((contender() - exact_B).abs().max())
            for name, contender in contenders.items()
            if "again" not in name
        },
        **aim("at least 20 times as fast as the dict of lists", speed["median"] >= 20),
    }


# Log-probs and entropy


def scores(
    contender: str, hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropy by one of three ways."""
    if contender == "all logits":
        return scores_from_all_logits(hidden, weight, tokens)
    if contender == "siirl, from logits":
        from_logits = token_scores(logits=hidden @ weight.T, tokens=tokens)
        return from_logits.log_probs_BT, from_logits.entropy_BT
    from_hidden = linear_token_scores(hidden=hidden, weight=weight, tokens=tokens)
    return from_hidden.log_probs_BT, from_hidden.entropy_BT


WAYS = ("all logits", "siirl, from logits", "siirl, from hidden states")


def example(
    tokens: int, vocabulary: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, output weights and tokens; logits have a deviation of about 2."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.empty(tokens, HIDDEN, dtype=dtype).normal_(generator=generator)
    weight = torch.empty(vocabulary, HIDDEN, dtype=dtype).normal_(
        std=2 / HIDDEN**0.5, generator=generator
    )
    return (
        hidden.requires_grad_(),
        weight.requires_grad_(),
        torch.randint(vocabulary, (tokens,), generator=generator),
    )


def run_way(contender: str) -> dict[str, float]:
    """Forward and backward once; called in a separate process."""
    torch.set_num_threads(1)
    hidden, weight, tokens = example(TOKENS, VOCABULARY, torch.float32)
    before = peak_bytes()
    wall, processor = time.perf_counter(), time.process_time()
    log_probs, entropy = scores(contender, hidden, weight, tokens)
    forward = time.process_time() - processor
    (log_probs.sum() + 0.01 * entropy.sum()).backward()
    return {
        "forward_s": forward,
        "processor_s": time.process_time() - processor,
        "wall_s": time.perf_counter() - wall,
        "bytes_with_inputs": before,
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> float:
    """The largest memory that this process has had so far."""
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return float(line.split()[1]) * 1024


def log_probs_section(rounds: int) -> dict[str, Any]:
    """2048 tokens, hidden size 512, vocabulary 150,000, float32: all logits are 1.2 GB."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(min(rounds, LOG_PROB_ROUNDS)):
        for way in WAYS:
            command = [sys.executable, "-m", "benchmarks.algorithms", "--way", way]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[way].append(json.loads(done.stdout))
    memory = {way: [each["peak_bytes"] for each in runs] for way, runs in found.items()}
    seconds = {way: [each["processor_s"] for each in runs] for way, runs in found.items()}
    share = ratio(memory, "siirl, from hidden states", "all logits")
    return {
        "runs": found,
        "peak memory": share,
        "time": ratio(seconds, "siirl, from hidden states", "all logits"),
        "peak memory of the way over logits": ratio(memory, "siirl, from logits", "all logits"),
        "largest error against float64": log_prob_errors(),
        **aim(
            "total peak memory at most a quarter of that with all logits", share["median"] <= 0.25
        ),
    }


def log_prob_errors() -> dict[str, dict[str, float]]:
    """Largest errors of values and gradients, on 64 tokens and a tenth of the vocabulary."""

    def run(way: str, dtype: torch.dtype) -> list[torch.Tensor]:
        hidden, weight, tokens = (
            tensor.detach() for tensor in example(64, VOCABULARY // 10, torch.float32)
        )
        hidden, weight = hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
        log_probs, entropy = scores(way, hidden, weight, tokens)
        gradients = torch.autograd.grad((log_probs + entropy).sum(), (hidden, weight))
        return [log_probs.detach(), entropy.detach(), *gradients]

    exact = run("all logits", torch.float64)
    names = ("log-probs", "entropy", "gradient of hidden states", "gradient of weights")
    return {
        way: {
            name: float((found - wanted).abs().max())
            for name, found, wanted in zip(names, run(way, torch.float32), exact, strict=True)
        }
        for way in WAYS
    }


# Balanced partitions


def balance_section(rounds: int) -> dict[str, Any]:
    """Lengths of responses (log-normal, to 8192 tokens) into parts of free and of equal size."""
    sections = {}
    for rows, count in PARTITIONS:
        lengths = (
            np.clip(np.random.default_rng(0).lognormal(6, 1, rows), 1, 8192).astype(int).tolist()
        )
        for equal_size in (False, True):
            used = lengths[: rows - rows % count] if equal_size else lengths
            seconds = take_turns(
                {
                    "siirl": functools.partial(
                        get_seqlen_balanced_partitions, used, count, equal_size=equal_size
                    )
                },
                rounds=rounds,
                warm_up=False,
            )
            parts = get_seqlen_balanced_partitions(used, count, equal_size=equal_size)
            sums = [sum(used[row] for row in part) for part in parts]
            over_mean = max(sums) * count / sum(sums)
            section = {
                "rows": len(used),
                "parts": count,
                "seconds": seconds,
                "spread": spread(parts, used),
                "largest over mean": over_mean,
            }
            if rows == PARTITIONS[0][0] and not equal_size:
                section["spread of the textbook's Karmarkar-Karp"] = karmarkar_karp_spread(
                    used, count
                )
                reached = section["spread"] <= section["spread of the textbook's Karmarkar-Karp"]
                section |= aim("a spread no worse than Karmarkar-Karp", reached)
            elif rows == PARTITIONS[1][0]:
                fast = statistics.median(seconds["processor"]["siirl"]) < 2
                section |= aim(
                    "under 2 s, largest over mean at most 1.001", fast and over_mean <= 1.001
                )
            sections[f"{rows} into {count}, {'equal' if equal_size else 'free'} sizes"] = section
    return sections


SECTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "gae": gae_section,
    "groups": groups_section,
    "log_probs": log_probs_section,
    "balance": balance_section,
}


def markdown(result: Mapping[str, Any]) -> str:
    """One table: what was asked for and what came out."""
    lines = [
        f"# {result['command']}",
        "",
        "| what | aim | measured | reached |",
        "|---|---|---|---|",
    ]
    for name, part in result["gae"].items():
        error = part["largest error against float64"]
        copied = part["speed against time before batch"]["median"]
        told = (
            f"{_times(part['speed'])}, {copied:.1f} times as the loop on columns copied to lie "
            "together"
        )
        told += f"; error {error['siirl']:.1e}, the loop's {error['loop over time steps']:.1e}"
        lines.append(_row(f"GAE {GAE_ROWS} x {GAE_TOKENS}, {name}", part, told))
    if result["groups"]:
        part = result["groups"]
        told = (
            f"{_times(part['speed'])}; {part['speed against floats']['median']:.1f} times with "
            "floats in the lists"
        )
        lines.append(_row(f"group statistics, {SAMPLES} samples", part, told))
    if result["log_probs"]:
        part = result["log_probs"]
        told = (
            f"{part['peak memory']['median']:.3f} of the memory, {part['time']['median']:.2f} of "
            "the time"
        )
        lines.append(
            _row(f"log-probs and entropy, {TOKENS} tokens x {VOCABULARY} entries", part, told)
        )
    for name, part in result["balance"].items():
        seconds = statistics.median(part["seconds"]["processor"]["siirl"])
        textbook = part.get("spread of the textbook's Karmarkar-Karp")
        told = (
            f"{seconds:.2f} s, spread {part['spread']}, largest over mean "
            f"{part['largest over mean']:.6f}"
        )
        lines.append(
            _row(
                name,
                part,
                told + (f"; textbook's spread {textbook}" if textbook is not None else ""),
            )
        )
    return "\n".join([*lines, ""])


def _times(speed: Mapping[str, float]) -> str:
    return f"{speed['median']:.1f} times as fast ({speed['lowest']:.1f} to {speed['highest']:.1f})"


def _row(name: str, part: Mapping[str, Any], told: str) -> str:
    reached = {True: "yes", False: "no"}.get(part.get("reached"), "-")  # type: ignore[arg-type]
    return f"| {name} | {part.get('aim', '-')} | {told} | {reached} |"


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print the table, write it and the raw numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=list(SECTIONS))
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULTS / "algorithms.json")
    flags = parser.parse_args(None if arguments is None else list(arguments))
    if flags.way is not None:
        print(json.dumps(run_way(flags.way)))
        return
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    sections: dict[str, Any] = {name: {} for name in SECTIONS}
    for name in flags.only:
        sections[name] = SECTIONS[name](flags.rounds)
        print(f"{name} measured", flush=True)
    command = " ".join(["python -m benchmarks.algorithms", *sys.argv[1:]])
    result = {
        "command": command,
        "machine": describe_machine(),
        "threads": 1,
        "rounds": flags.rounds,
        "load_average": {"before": load, "after": os.getloadavg()[0]},
        **sections,
    }
    flags.output.parent.mkdir(parents=True, exist_ok=True)
    flags.output.write_text(json.dumps(result, indent=1) + "\n")
    flags.output.with_suffix(".md").write_text(markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
