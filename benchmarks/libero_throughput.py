"""Episodes per minute of a rollout on LIBERO, 8 prompts x 8 rollouts of mixed length: lockstep
loops and AsyncVectorEnv against siirl's pool.

    python -m benchmarks.libero_throughput
    # a quick look
    python -m benchmarks.libero_throughput --rounds 1 --prompts 1 --max-episode-steps 24

(a) lockstep: one process per environment, every action stepped by robosuite's own loop and
rendered, simulators rebuilt for each episode, the policy also asked for episodes that have ended.
(b) gymnasium's AsyncVectorEnv over robosuite's own loop, with simulators reused and ended episodes
skipped, which neither LIBERO nor its trainers do. (b') the same with eight actions and one image
per call. Both once more over siirl's environment with its faster physics step, so that only the
pool differs. (ours) the pool on Ray. Same task, episodes, random numbers, image size, render
settings, number of environments, and one policy thread; contenders take turns in rounds, and every
ratio is taken within a round. Two controls: all contenders end up with the same steps and
successes; and (a) is also run with our physics step. 28 environments hold 20 GB.
"""

import argparse
import functools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.libero_contenders import (
    AS_PUBLISHED,
    PUBLISHED_STEP,
    REBUILT,
    REUSED,
    Contender,
    Lockstep,
    Pool,
    seconds_per_reset,
    timed_environment,
)
from benchmarks.measured_on import describe_machine
from benchmarks.rate_ratios import summarise_ratios
from benchmarks.throughput_envs import finished
from envs.libero.assets import StandInWarning
from envs.libero.suites import choose_tasks
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.execution.scheduler.ray_session import ClusterSettings, ray_session
from siirl.files.paths import find
from siirl.models import load_policy

RESULT = Path(__file__).parent / "results" / "libero_throughput.json"
FIRST_SEED = 1_700_000  # starts from states that are not held out; nothing was tuned on them
PAIRS = {
    "ours against (a), the lockstep way (aim 4)": ("ours", "a"),
    "ours against (b), AsyncVectorEnv over LIBERO's own step (aim 3)": ("ours", "b"),
    "ours against (b'), the same with our trick (aim 1.3)": ("ours", "b_chunk"),
    "ours against (b) over siirl's environment": ("ours", "b_our_step"),
    "ours against (b') over siirl's environment": ("ours", "b_chunk_our_step"),
    "cause: dynamics computed once a physics step": ("a_our_step", "a"),
    "cause: simulators reused, and the policy not asked for ended episodes": (
        "b_our_step",
        "a_our_step",
    ),
    "cause: one call and one image for eight actions": ("b_chunk_our_step", "b_our_step"),
    "cause: no barrier, slots refilled, fewer processes": ("ours", "b_chunk_our_step"),
}


def read_flags() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="assets/tiny_vla_libero")
    parser.add_argument("--suite", default="object")
    parser.add_argument("--task", default="0")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-servers", type=int, default=2, help="configs/env/libero.yaml's")
    parser.add_argument(
        "--envs-per-server",
        type=int,
        default=2,
        help="that file's; all contenders have as many environments",
    )
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--max-episode-steps", type=int)
    parser.add_argument("--assets", default="stand_in")
    parser.add_argument(
        "--cluster",
        choices=("ray", "local"),
        default="ray",
        help="local: ours in this process, for a quick look",
    )
    parser.add_argument("--result", type=Path, default=RESULT)
    return parser.parse_args()


def main() -> None:
    """Measure, print, write."""
    flags = read_flags()
    warnings.simplefilter("ignore", StandInWarning)  # the result names the assets
    torch.set_num_threads(1)
    [task] = choose_tasks(flags.suite, [flags.task])
    env_kwargs = {
        "suite": flags.suite,
        "tasks": [task.name],
        "assets": flags.assets,
        "image_size": flags.image_size,
    }
    if flags.max_episode_steps is not None:
        env_kwargs["max_episode_steps"] = flags.max_episode_steps
    requests = make_requests(task.name, prompts=flags.prompts, rollouts=flags.rollouts)
    policy = load_policy(find(flags.policy)).eval()
    starts = seconds_per_reset(env_kwargs)
    with ExitStack() as stack:
        if flags.cluster == "ray":
            stack.enter_context(
                ray_session(ClusterSettings(address=None, env_vars={"OMP_NUM_THREADS": "1"}))
            )  # as a run has it
        contenders = make_contenders(
            policy, env_kwargs, instructions={task.name: task.instruction}, flags=flags
        )
        for contender in contenders.values():
            stack.callback(contender.close)
        measured = measure(contenders, requests, rounds=flags.rounds)
        measured["memory_mb"] = {
            name: round(contender.simulator_bytes() / 1e6) for name, contender in contenders.items()
        }
        pool = contenders["ours"]
        assert isinstance(pool, Pool)
        measured["time_shares"] = time_shares(pool, env_kwargs)
    ratios = summarise_ratios(measured["episodes_per_minute"], PAIRS)
    settings = {name: value for name, value in vars(flags).items() if name != "result"}
    result = {
        "command": " ".join(["python -m benchmarks.libero_throughput", *sys.argv[1:]]),
        "machine": describe_machine(),
    }
    result |= {"settings": settings, "ratios": ratios, "seconds_per_reset": starts, **measured}
    flags.result.write_text(json.dumps(result, indent=1) + "\n")
    print(report(result))


def make_requests(task: str, *, prompts: int, rollouts: int) -> list[EpisodeRequest]:
    """The episodes of a GRPO step: groups that start alike, and random numbers of their own."""
    numbers = [(prompt, rollout) for prompt in range(prompts) for rollout in range(rollouts)]
    return [
        EpisodeRequest(
            uid=f"{prompt:03d}-{rollout:03d}",
            group_id=prompt,
            task=task,
            task_id=0,
            trial_id=prompt,
            seed=FIRST_SEED + prompt,
            policy_seed=(FIRST_SEED, prompt, rollout),
        )
        for prompt, rollout in numbers
    ]


def make_contenders(
    policy: Any,
    env_kwargs: Mapping[str, Any],
    *,
    instructions: Mapping[str, str],
    flags: argparse.Namespace,
) -> dict[str, Contender]:
    """All that are measured, started."""
    num_envs = flags.num_servers * flags.envs_per_server
    if flags.prompts * flags.rollouts % num_envs:
        raise SystemExit(
            f"--prompts x --rollouts must be a multiple of the {num_envs} environments: lockstep "
            "loops run full batches."
        )
    lockstep = functools.partial(
        Lockstep, policy, env_kwargs, instructions=instructions, num_envs=num_envs
    )
    return {
        "a": lockstep(env_name=AS_PUBLISHED, chunk=1, sparing=False),
        "a_our_step": lockstep(env_name=REBUILT, chunk=1, sparing=False),
        "b": lockstep(env_name=PUBLISHED_STEP, chunk=1, sparing=True),
        "b_chunk": lockstep(env_name=PUBLISHED_STEP, chunk=policy.chunk_length, sparing=True),
        "b_our_step": lockstep(env_name=REUSED, chunk=1, sparing=True),
        "b_chunk_our_step": lockstep(env_name=REUSED, chunk=policy.chunk_length, sparing=True),
        "ours": Pool(
            policy,
            env_kwargs,
            num_servers=flags.num_servers,
            envs_per_server=flags.envs_per_server,
            cluster=flags.cluster,
        ),
    }


def measure(
    contenders: Mapping[str, Contender], requests: Sequence[EpisodeRequest], *, rounds: int
) -> dict[str, Any]:
    """Episodes per minute and steps per second of each contender and round; a first episode in
    each environment is not counted.
    """
    episodes: dict[str, list[float]] = {name: [] for name in contenders}
    steps: dict[str, list[float]] = {name: [] for name in contenders}
    outcomes: dict[str, dict[str, int]] = {}
    for name, contender in contenders.items():
        warm = len(contender.processes()) if isinstance(contender, Lockstep) else len(requests)
        contender.run(requests[:warm])
    for number in range(1, rounds + 1):
        for name, contender in contenders.items():
            begin = time.perf_counter()
            outcome = contender.run(requests)
            seconds = time.perf_counter() - begin
            episodes[name].append(60 * outcome.episodes / seconds)
            steps[name].append(outcome.steps / seconds)
            outcomes[name] = outcome._asdict()
            print(
                f"round {number} of {rounds}: {name:<16} {episodes[name][-1]:8.1f} episodes/min "
                f"{steps[name][-1]:8.0f} steps/s",
                flush=True,
            )
    return {"episodes_per_minute": episodes, "steps_per_s": steps, "outcomes": outcomes}


def time_shares(pool: Pool, env_kwargs: Mapping[str, Any]) -> dict[str, float]:
    """Where the simulators' time goes, as shares that add to one, and beside them how busy the
    policy's thread is.

    The servers' busy time is divided as one environment in this process divides its own; the rest
    of it is starts and bookkeeping.
    """
    environment, seconds = timed_environment(
        {**env_kwargs, "max_episode_steps": None}
    )  # three chunks are never too many
    policy_chunk = [environment.spec.action_space.sample() * 0.3 for _ in range(8)]
    finished(environment.reset(seed=FIRST_SEED))
    seconds.update(simulation=0.0, rendering=0.0)
    begin = time.perf_counter()
    for _ in range(3):
        finished(environment.step_chunk(policy_chunk))
    total = time.perf_counter() - begin
    finished(environment.close())
    busy = pool.busy["simulators"]
    shares = {name: busy * part / total for name, part in seconds.items()}
    shares["starts and bookkeeping"] = busy - sum(shares.values())
    shares["waiting for the policy, transfer, the last episodes"] = 1.0 - busy
    return shares | {"(policy thread busy)": pool.busy["policy"]}


def report(result: Mapping[str, Any]) -> str:
    """The tables."""
    lines = [
        "",
        "| contender | episodes/min, median | steps/s, median | MB a process | steps, successes |",
        "|---|---|---|---|---|",
    ]
    for name, values in result["episodes_per_minute"].items():
        steps, outcome = statistics.median(result["steps_per_s"][name]), result["outcomes"][name]
        done = f"{outcome['steps']}, {outcome['successes']} of {outcome['episodes']}"
        lines.append(
            f"| {name} | {statistics.median(values):.1f} | {steps:.0f} | "
            f"{result['memory_mb'][name]} | {done} |"
        )
    lines += ["", "| ratio within a round | median | range |", "|---|---|---|"]
    lines += [
        f"| {name} | {r['median']:.2f} | {r['lowest']:.2f} to {r['highest']:.2f} |"
        for name, r in result["ratios"].items()
    ]
    lines += ["", "| simulators' time | share |", "|---|---|"]
    lines += [f"| {name} | {100 * share:.0f} % |" for name, share in result["time_shares"].items()]
    lines += [
        "",
        "seconds per reset: "
        + ", ".join(f"{name} {value:.2f}" for name, value in result["seconds_per_reset"].items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
