"""Measures what the shipped text model answers to reasoning-gym's questions before any training.

    pip install 'siirl[reasoning-gym]'
    python -m benchmarks.reasoning_gym_start

For each of twelve generators, `assets/tiny_lm` answers 100 bare held-out questions at temperature
1. The table counts the right answers, those with partial credit, and those that the verifier could
not score (it raised, or took more than 5 s: an exponent of many digits, for example).

Left out: generators with prompts of more tokens than the preset allows, 512.
"""

# Q question, S token

import argparse
import asyncio
import json
import time
from importlib.metadata import version
from typing import Any

import torch

from benchmarks.any_tasks_suites import RESULTS
from benchmarks.measured_on import describe_machine
from envs.base import EpisodeFailed
from envs.reasoning_gym_env import ReasoningGymEnv
from envs.text import MESSAGES
from siirl.models.chat import ChatTokenizer, load_chat_tokenizer
from siirl.models.language_model import LanguageModel, load_language_model
from siirl.params.parser import parse_config

MODEL = "assets/tiny_lm"
GENERATORS: dict[str, dict[str, int]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "gcd": {},
    "lcm": {},
    "letter_counting": {},
    "count_bits": {},
    "count_primes": {},
    "number_sequence": {},
    "simple_equations": {},
    "products": {},
    "time_intervals": {},
    "coin_flip": {},
    "syllogism": {},
}


def main() -> None:
    """Measure each generator, write the results, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    model = load_language_model(MODEL, trust_remote_code=False)
    tokenizer = load_chat_tokenizer(MODEL, trust_remote_code=False)
    begin = time.perf_counter()
    found = {}
    for name in GENERATORS:
        scores_Q = asyncio.run(scores(name, model, tokenizer, flags.questions, flags.seed))
        scored = [score for score in scores_Q if score is not None]
        found[name] = {
            "right": sum(score == 1.0 for score in scored),
            "partly_right": sum(0.0 < score < 1.0 for score in scored),
            "without_score": len(scores_Q) - len(scored),
            "mean_score": sum(scored) / max(1, len(scored)),
        }
        print(name, found[name], flush=True)
    result = {
        "model": MODEL,
        "questions": flags.questions,
        "seed": flags.seed,
        "settings": {name: settings for name, settings in GENERATORS.items() if settings},
        "reasoning_gym": version("reasoning-gym"),
        "seconds": round(time.perf_counter() - begin),
        "machine": describe_machine(),
        "generators": found,
    }
    file = RESULTS / "reasoning_gym_start.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    file.with_suffix(".md").write_text(table(found))
    print(table(found))


async def scores(
    name: str, model: LanguageModel, tokenizer: ChatTokenizer, questions: int, seed: int
) -> list[float | None]:
    """The verifier's score of a sampled answer to each held-out question; None: it gave none."""
    config = parse_config(["env=reasoning_gym", f"env.dataset={name}", "pipeline=grpo"])
    env = ReasoningGymEnv(dataset=name, split="heldout", wording="bare", **GENERATORS[name])
    prompts = []
    for question in range(questions):
        observation, _ = await env.reset(seed=question)
        prompts.append(tokenizer.encode_prompt(observation[MESSAGES]))
    if (longest := max(map(len, prompts))) > config.data.max_prompt_length:
        raise SystemExit(f"A prompt of {name} has {longest} tokens.")
    torch.manual_seed(seed)
    answers = sample(model, tokenizer, prompts, longest=config.data.max_response_length)
    found: list[float | None] = []
    for question, answer in enumerate(answers):
        await env.reset(seed=question)
        try:
            found.append((await env.step(answer))[1])
        except EpisodeFailed:
            found.append(None)
    await env.close()
    return found


@torch.no_grad()
def sample(
    model: Any, tokenizer: ChatTokenizer, prompts: list[tuple[int, ...]], *, longest: int
) -> list[str]:
    """A text for each prompt at temperature 1."""
    width = max(map(len, prompts))
    padded_QS = [[tokenizer.pad_id] * (width - len(prompt)) + [*prompt] for prompt in prompts]
    mask_QS = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    tokens = model.causal_lm.generate(
        torch.tensor(padded_QS),
        attention_mask=torch.tensor(mask_QS),
        max_new_tokens=longest,
        do_sample=True,
        top_k=0,
        eos_token_id=tokenizer.end_id,
        pad_token_id=tokenizer.pad_id,
    )
    texts = []
    for answer in tokens[:, width:].tolist():
        end = answer.index(tokenizer.end_id) if tokenizer.end_id in answer else len(answer)
        texts.append(tokenizer.decode(answer[:end]))
    return texts


def table(found: dict[str, dict[str, float]]) -> str:
    """A row a generator."""
    lines = [
        "| generator | right | partly right | without a score | mean score |",
        "|---|---|---|---|---|",
    ]
    for name, row in found.items():
        lines.append(
            f"| `{name}` | {row['right']} | {row['partly_right']} | {row['without_score']} "
            f"| {row['mean_score']:.4f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
