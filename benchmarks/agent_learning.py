"""Measures whether a solver and a checker, trained together, beat the solver trained alone.

    # three seeds; results in benchmarks/results/agent_learning.json and .png
    python -m benchmarks.agent_learning --seeds 1 2 3

The job is docs/examples/solver_checker_job.yaml: two-digit sums on the shipped model, which first
clones right answers in each role: the question alone, after a first answer, and after an answer and
another number. Half of the shown answers are right, so the start does not ignore them. After 400
updates the reviser corrects four in five wrong answers; after 200 it corrects half of them, and the
two agents gained nothing over the solver alone. Arms:

- joint: solver and checker, each with its own weights and optimiser.
- alone: the solver alone, from the same weights, until it has generated as many tokens.
- untrained_checker: the joint job, in which only the solver is trained; the control.

Success is that of sampled answers to held-out questions. `alone` is also measured with the majority
of three sampled answers, which costs at least the tokens that the two agents spend on a question.
`game` counts the outcomes of solver, checker and reviser on held-out questions, before and after.
"""

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib
import torch
import yaml

from benchmarks.measured_on import describe_machine
from envs.arguments import HELDOUT_SHARE
from envs.math.math_env import question_source
from siirl import train
from siirl.imitation.sft import rows_of, train_sft
from siirl.imitation.sft_examples import Example
from siirl.models.chat import ChatTokenizer, load_chat_tokenizer
from siirl.models.language_model import load_language_model
from siirl.reporting.statistics import success_interval

matplotlib.use("Agg")
sys.path.insert(0, "docs/examples")  # the job names a module of its folder
import matplotlib.pyplot as plt

RESULT = Path("benchmarks/results/agent_learning.json")
JOB = Path("docs/examples/solver_checker_job.yaml")
GRAPH = Path("docs/examples/solver_checker.yaml")
TASK = "sums-2"
ARMS = ("joint", "alone", "untrained_checker")
HELD_OUT = 1000  # questions; +-2 points at 90 %
FORMAT_UPDATES, FORMAT_ROWS, FORMAT_RATE = 400, 64, 1e-3
PROMPTS, ROLLOUTS = 32, 16
COMMON = (
    *("cluster=local", f"data.train_batch_size={PROMPTS}", "data.max_response_length=8"),
    *(f"actor_rollout_ref.rollout.n={ROLLOUTS}", f"env.envs_per_server={PROMPTS * ROLLOUTS}"),
    f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS // 2}",
    # the sizes of trainer=laptop_text at half its rate; with a quarter of the samples a step and
    # its whole rate, training success fell from 65 to 42 % (one seed, 15 steps). The joint solver
    # has a varying number of updates a step, so the rate does not depend on their planned number
    *("actor_rollout_ref.actor.optim.lr=1e-4", "actor_rollout_ref.actor.optim.warmup_steps=5"),
    "actor_rollout_ref.actor.optim.scheduler=constant_with_warmup",
    *("trainer.max_minutes=null", "trainer.save_freq=-1", "trainer.save_rollouts=0"),
    *(f"trainer.val_episodes={HELD_OUT}", "trainer.logger=[]", "trainer.threads_per_rank=1"),
)


@dataclass(frozen=True)
class Run:
    """Records of a training run, a dict a step, and the folder of its last weights."""

    records: list[dict[str, Any]]
    weights: Path


def question(random_: random.Random, *, split: str = "train") -> tuple[str, str]:
    """A question and its answer."""
    source = question_source(tasks=[TASK], files=None, wording="bare", heldout_share=HELDOUT_SHARE)
    row = source.draw(TASK, split=split, seed=random_.randrange(1 << 31))
    return row.prompt[-1]["content"], str(row.ground_truth)


def conversation(random_: random.Random, tokenizer: ChatTokenizer) -> Example:
    """A right answer of the solver, the checker or the reviser."""
    asked, right = question(random_)
    wrong = [str(abs(int(right) + error)) for error in random_.sample((-10, -1, 1, 10), k=2)]
    shown = [right, *wrong] if random_.random() < 0.5 else wrong
    seen = shown[: random_.randrange(3)]  # the reviser sees two different numbers
    random_.shuffle(seen)
    said = (*tokenizer.encode_text(right), tokenizer.end_id)
    return Example(prompt_of(asked, seen, tokenizer), said, (True,) * len(said))


def prompt_of(asked: str, seen: Sequence[str], tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """The question, after the numbers that earlier roles said."""
    text = f"{','.join(seen)}? {asked}" if seen else asked
    return tokenizer.encode_prompt([{"role": "user", "content": text}])


def write_start(folder: Path) -> None:
    """Write the weights that all arms start from."""
    torch.manual_seed(0)
    random_ = random.Random(0)
    tokenizer, model = load_chat_tokenizer("assets/tiny_lm"), load_language_model("assets/tiny_lm")

    def draw() -> Any:
        examples = [conversation(random_, tokenizer) for _ in range(FORMAT_ROWS)]
        return rows_of(examples, pad_id=tokenizer.pad_id)

    for _ in train_sft(model, draw, updates=FORMAT_UPDATES, learning_rate=FORMAT_RATE):
        pass
    model.save(folder)
    tokenizer.save(folder)


def run(words: Sequence[str], folder: Path) -> Run:
    """Train in this process, and read the metrics."""
    line = [*words, *COMMON, f"trainer.output_dir={folder}"]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        status = train.main(line)
    if status != 0:
        raise SystemExit(f"siirl.train {' '.join(line)} ended with {status}:\n{shown.getvalue()}")
    [metrics] = folder.glob("*/*/metrics.jsonl")
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    [weights] = sorted(metrics.parent.glob("checkpoints/step_*/actor"))[-1:]
    return Run(records, weights)


def tokens_of(record: dict[str, Any]) -> float:
    """Tokens that all agents generated in a step."""
    rows = sum(record.get(f"{agent}data/trajectories", 0.0) for agent in ("", "agent_1/"))
    return float(record["rollout/avg_response_length"] * (rows or record["rollout/episodes"]))


def curve_of(run_: Run) -> list[tuple[float, float]]:
    """Generated tokens so far, and success of the step's training episodes."""
    tokens, points = 0.0, []
    for record in run_.records:
        if "rollout/success_rate" in record:
            tokens += tokens_of(record)
            points.append((tokens, record["rollout/success_rate"]))
    return points


def held_out(run_: Run) -> dict[str, dict[str, float]]:
    """Success before and after, of sampled answers, with 95 % intervals."""
    found = [record for record in run_.records if "val/all/success_rate" in record]
    return {
        when: interval(record["val/all/successes"], record["val/all/episodes"])
        for when, record in (("before", found[0]), ("after", found[-1]))
    }


def interval(successes: float, episodes: float) -> dict[str, float]:
    """A rate with its 95 % interval."""
    found = success_interval(int(successes), int(episodes))
    return {"rate": found.rate, "low": found.low, "high": found.high, "episodes": episodes}


class Speaker:
    """Samples answers of a trained model.

    Args:
        weights: A model's folder.
    """

    def __init__(self, weights: Path) -> None:
        self.tokenizer = load_chat_tokenizer(weights)
        self.model = load_language_model(weights).eval()

    def say(self, asked: Sequence[str], seen: Sequence[Sequence[str]]) -> list[str]:
        """A sampled answer to each question, after the numbers that are seen."""
        prompts = [
            prompt_of(text, said, self.tokenizer) for text, said in zip(asked, seen, strict=True)
        ]
        answers: dict[int, str] = {}
        for length in {len(prompt) for prompt in prompts}:
            rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
            drawn = self._continued(torch.tensor([prompts[row] for row in rows]))
            answers |= dict(zip(rows, drawn, strict=True))
        return [answers[row] for row in range(len(prompts))]

    @torch.no_grad()
    def _continued(self, prompts: torch.Tensor) -> list[str]:
        ids, stop = prompts, self.tokenizer.end_id
        for _ in range(5):  # three digits and the end, or one token too many
            logits = self.model.causal_lm(ids).logits[:, -1]
            drawn = torch.distributions.Categorical(logits=logits).sample()
            ended = (ids[:, prompts.shape[1] :] == stop).any(1)
            ids = torch.cat([ids, torch.where(ended, stop, drawn)[:, None]], dim=1)
        rows = ids[:, prompts.shape[1] :].tolist()
        return [self.tokenizer.decode([t for t in row if t != stop]).strip() for row in rows]


def held_out_questions(seed: int) -> tuple[list[str], list[str]]:
    """Distinct held-out questions, and their answers."""
    torch.manual_seed(seed)
    random_ = random.Random(seed)
    drawn = dict(question(random_, split="heldout") for _ in range(4 * HELD_OUT))
    return list(drawn)[:HELD_OUT], list(drawn.values())[:HELD_OUT]


def majority(weights: Path, *, seed: int, answers: int = 3) -> dict[str, float]:
    """Success of the most frequent of three sampled answers; the first where all differ."""
    asked, truths = held_out_questions(seed)
    speaker, nothing = Speaker(weights), [()] * len(asked)
    drawn = zip(*(speaker.say(asked, nothing) for _ in range(answers)), strict=True)
    right = [
        Counter(texts).most_common(1)[0][0] == truth
        for texts, truth in zip(drawn, truths, strict=True)
    ]
    return interval(sum(right), len(right))


def game(solver: Path, checker: Path, *, seed: int) -> dict[str, float]:
    """Counts of held-out questions: what the three roles do with them."""
    asked, truths = held_out_questions(seed)
    speaker = Speaker(solver)
    first = speaker.say(asked, [()] * len(asked))
    verdict = Speaker(checker).say(asked, [(one,) for one in first])
    last = speaker.say(asked, list(zip(first, verdict, strict=True)))
    counts: Counter[str] = Counter(questions=len(asked))
    for truth, *said in zip(truths, first, verdict, last, strict=True):
        right, hint_right, last_right = (text == truth for text in said)
        accepted = said[0] == said[1]
        counts["first_right"] += right
        counts["accepted_right"] += accepted and right
        counts["accepted_wrong"] += accepted and not right
        counts["right_hints"] += not accepted and hint_right
        counts["revised_right_after_right_hint"] += not accepted and hint_right and last_right
        counts["sent_back_right"] += not accepted and right
        counts["revised_right_after_right_first"] += not accepted and right and last_right
        counts["success"] += right if accepted else last_right
    return dict(counts)


def untrained_checker(folder: Path) -> Path:
    """File of the graph without the checker's training."""
    graph = yaml.safe_load(GRAPH.read_text())
    graph["nodes"] = [
        node
        for node in graph["nodes"]
        if node["node_id"] in ("episodes", "checker_rows") or node["node_id"].startswith("solver")
    ]
    file = folder / "untrained_checker.yaml"
    file.write_text(yaml.safe_dump(graph))
    return file


def measure(seed: int, *, steps: int, start: Path, folder: Path) -> list[dict[str, Any]]:
    """The two agents, and the solver alone on as many tokens."""
    joint = run([*job(start, seed), f"trainer.total_steps={steps}"], folder / "joint")
    budget = curve_of(joint)[-1][0]
    alone_steps = round(budget / (PROMPTS * ROLLOUTS * tokens_of_an_answer(joint)))
    words = ("pipeline=grpo", "env=math", *job(start, seed)[3:])
    alone = run([*words, f"trainer.total_steps={alone_steps}"], folder / "alone")
    checker = joint.weights.parent / "actor_1"
    games = {
        "before": game(start, start, seed=seed),
        "after": game(joint.weights, checker, seed=seed),
    }
    return [
        described("joint", seed, joint) | {"game": games},
        described("alone", seed, alone) | {"majority_of_3": majority(alone.weights, seed=seed)},
    ]


def measure_control(seed: int, *, steps: int, start: Path, folder: Path) -> list[dict[str, Any]]:
    """The two agents, of which only the solver is trained."""
    graph = untrained_checker(folder)
    words = [*job(start, seed, graph=graph), f"trainer.total_steps={steps}"]
    return [described("untrained_checker", seed, run(words, folder / "control"))]


def job(start: Path, seed: int, *, graph: Path = GRAPH) -> tuple[str, ...]:
    """Words of the joint job; after the first three those of every arm."""
    return (
        *("--config", str(JOB), f"dag.workflow_file={graph}"),
        *(f"actor_rollout_ref.model.path={start}", f"trainer.seed={seed}"),
    )


def described(arm: str, seed: int, found: Run) -> dict[str, Any]:
    """The result of a run."""
    return {"arm": arm, "seed": seed, "curve": curve_of(found), "held_out": held_out(found)}


def tokens_of_an_answer(joint: Run) -> float:
    """Tokens of an answer: three digits at most, and the end; measured by the joint run."""
    record = next(record for record in joint.records if "rollout/success_rate" in record)
    rows = record["data/trajectories"] + record["agent_1/data/trajectories"]
    turns = record["rollout/turns"] * rows  # of all roles
    return float(record["rollout/avg_response_length"] * rows / turns)


def draw_curves(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Success over generated tokens, a colour an arm and a line a seed, beside held-out success."""
    figure, (curves, points) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2))
    arms = [arm for arm in ARMS if any(result["arm"] == arm for result in results)]
    labels = [*arms, "alone, majority of 3"]
    for result in results:
        colour = f"C{arms.index(result['arm'])}"
        tokens, success = torch.tensor(result["curve"]).T
        smooth = torch.nn.functional.avg_pool1d(success[None], 9, 1, 4, count_include_pad=False)[0]
        first = result is next(one for one in results if one["arm"] == result["arm"])
        curves.plot(
            tokens / 1000, 100 * smooth, color=colour, label=result["arm"] if first else None
        )
        after = [(arms.index(result["arm"]), result["held_out"]["after"])]
        if "majority_of_3" in result:
            after.append((len(arms), result["majority_of_3"]))
        for place, found in after:
            error = [
                [100 * (found["rate"] - found["low"])],
                [100 * (found["high"] - found["rate"])],
            ]
            x = place + 0.1 * (result["seed"] - 2)
            points.errorbar(x, 100 * found["rate"], error, fmt="o", color=f"C{place}", markersize=4)
    curves.set(xlabel="generated tokens, thousands", ylabel="success of training episodes, %")
    curves.legend()
    points.set(ylabel="held-out success, %", xticks=range(len(labels)))
    points.set_xticklabels([label.replace("_", "\n").replace(", ", ",\n") for label in labels])
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def main(argv: Sequence[str] | None = None, *, report: Callable[[str], None] = print) -> None:
    """Measure and write the result after each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=150, help="of the joint run")
    parser.add_argument("--start", type=Path, help="weights of an earlier call to start from")
    parser.add_argument("--at-once", type=int, default=1, help="runs beside each other")
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args(argv)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        start = arguments.start or Path(place) / "start"
        if arguments.start is None:
            write_start(start)
        report("the weights that all arms start from are written")
        workers = ProcessPoolExecutor(arguments.at_once, mp_context=get_context("spawn"))
        with workers:
            futures = [
                workers.submit(
                    measured,
                    seed,
                    steps=arguments.steps,
                    start=start,
                    folder=Path(tempfile.mkdtemp(dir=place)),
                )
                for measured in (measure, measure_control)
                for seed in arguments.seeds
            ]
            for future in as_completed(futures):
                results += future.result()
                results.sort(key=lambda result: (ARMS.index(result["arm"]), result["seed"]))
                write(arguments, results)
                for result in future.result():
                    after = result["held_out"]["after"]["rate"]
                    report(f"seed {result['seed']} {result['arm']}: {after:.3f}")


def write(arguments: argparse.Namespace, results: Sequence[dict[str, Any]]) -> None:
    """Write the results so far, and their picture."""
    seeds = " ".join(map(str, arguments.seeds))
    content = {
        "command": f"python -m benchmarks.agent_learning --seeds {seeds} --steps {arguments.steps}",
        "machine": describe_machine() | {"note": "shared with other work; no figure is a time"},
        "results": results,
    }
    arguments.output.write_text(json.dumps(content, indent=1) + "\n")
    draw_curves(results, arguments.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
