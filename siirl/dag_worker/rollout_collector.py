"""RolloutCollector: turns prompts into trajectories, for VLA policies and text.

A prompt is a task with a start state, or a question. The rollout defines what an episode is. The
metrics of a rollout depend on its kind, so the function that computes them is an argument.
"""

# B prompt or trajectory

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tensordict import TensorDict

from siirl.data_coordinator.prompts.dataset import task_name
from siirl.data_coordinator.protocol.batch import texts
from siirl.engine.rollout.rollout import Rollout, check_failures, requests_for_prompts
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutResult
from siirl.engine.training.collectives import Collectives
from siirl.errors import CheckpointError
from siirl.execution.dag import NodeOutput
from siirl.params import sizes
from siirl.params.model_args import ActorRolloutRefArguments
from siirl.params.training_args import TrainingArguments
from siirl.reporting.finished_episodes import Recorder
from siirl.reporting.metrics import Value, Weighted

Measure = Callable[[RolloutResult, Mapping[str, float]], dict[str, Value]]
"""Computes a rollout's metrics from its episodes and raw counts."""


NUMBERS_OF_A_PROMPT = ("index", "task_id", "trial_id", "seed")


class RolloutCollector:
    """Runs the prompts of a step as episodes of this rank's rollout.

    Args:
        policy: Rollouts of a prompt, and the correlation of their noise.
        trainer: Seed of the run, and recorded episodes of a step.
        max_failed_share: `env.max_failed_share`, for the default `check`.
        rollout: Runs the episodes.
        recorder: Records some of them.
        ranks: The processes that share the step.
        measure: Metrics of a rollout: `rollout_metrics` for VLA policies, `return_rollout_metrics`
            without a success flag, `text_rollout_metrics` for text.
        check: Called with the result and the number of its `episodes`; by default `check_failures`
            over `ranks`, which stops the run if too many failed.
    """

    def __init__(
        self,
        *,
        policy: ActorRolloutRefArguments,
        trainer: TrainingArguments,
        max_failed_share: float,
        rollout: Rollout,
        recorder: Recorder,
        ranks: Collectives,
        measure: Measure | None = None,
        check: Callable[..., None] | None = None,
    ) -> None:
        self.policy, self.trainer = policy, trainer
        self.rollout = rollout
        self.recorder = recorder
        self.ranks = ranks
        self.measure: Measure = rollout_metrics if measure is None else measure
        self.check = check or functools.partial(
            check_failures, max_failed_share=max_failed_share, ranks=ranks
        )
        # recorded episodes by step, over the rollouts of a refilled step
        self._recorded: Counter[int] = Counter()

    def roll_out(self, batch: TensorDict, *, step: int, greedy: bool = False) -> NodeOutput:
        """Run every prompt `rollout.n` times, or once if `greedy`; a row per simulated episode."""
        requests = self.requests(batch, step=step, greedy=greedy)
        result, stats = self.rollout.generate(requests, embed=True)
        self.check(result, episodes=len(requests))
        self.recorder.keep(result.trajectories, kind="train", step=step)
        return NodeOutput(batch=result.training_batch(), metrics=self.measure(result, stats))

    def requests(
        self, batch: TensorDict, *, step: int, greedy: bool = False
    ) -> list[EpisodeRequest]:
        """Episodes of the prompts of a step, some of them to be recorded."""
        requests = requests_for_prompts(
            prompts_of(batch),
            rollouts=1 if greedy else self.policy.rollout.n,
            run_seed=self.trainer.seed,
            step=step,
            record=0
            if greedy
            else share_of(self.trainer.record_episodes, self.ranks) - self._recorded[step],
            noise_correlation=sizes.noise_correlation(self.policy),
        )
        self._recorded[step] += sum(request.record for request in requests)
        if not greedy:
            return requests
        return [
            dataclasses.replace(request, uid=f"{request.uid}-greedy", greedy=True)
            for request in requests
        ]

    def state_dict(self) -> dict[str, Any]:
        """State that later rollouts depend on, the same on every rank; whole episodes have none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, on any number of ranks.

        Raises:
            CheckpointError: It comes from a run with segments (`rollout.n_steps`).
        """
        refuse_segments(state)

    def write_recordings(self, rewards: Mapping[str, float]) -> None:
        """Write the step's recorded episodes with their rewards by uid."""
        self.recorder.write(rewards)

    @property
    def reports_success(self) -> bool:
        """Whether the environment reports success; if not, `complete` is false everywhere."""
        return self.rollout.pool.spec.reports_success


def refuse_segments(state: Mapping[str, Any]) -> None:
    """Raise CheckpointError for the state of a run with segments, in a run of whole episodes."""
    if state:
        raise CheckpointError(
            "The checkpoint holds unfinished episodes, but this run trains on whole episodes: "
            "resume with the same actor_rollout_ref.rollout.n_steps, or start a new run from the "
            "checkpoint's weights."
        )


def prompts_of(batch: TensorDict) -> list[dict[str, Any]]:
    """Prompts of a batch as plain columns, as the loader made them."""
    prompts: list[dict[str, Any]] = []
    for i, name in enumerate(texts(batch, "task_name")):
        numbers = {column: int(batch[column][i]) for column in NUMBERS_OF_A_PROMPT}
        prompts.append({"task_name": name, **numbers})
    if "prompt_row" in batch.keys():
        for prompt, row in zip(prompts, texts(batch, "prompt_row"), strict=True):
            prompt["prompt_row"] = row
    return prompts


def share_of(count: int, ranks: Collectives) -> int:
    """This rank's share of `count` items."""
    return count // ranks.size + (ranks.rank < count % ranks.size)


def rollout_metrics(result: RolloutResult, stats: Mapping[str, float]) -> dict[str, Value]:
    """Metrics of a rollout before any filter, over all simulated episodes.

    Where agents have roles, success and return are those of the first.
    """
    rows = [trajectory.row for trajectory in result.trajectories]
    leading = [row for row in rows if row.get("agent", 0) == 0]
    graded = [row for row in leading if row.get("graded", True)]
    successes: dict[str, list[float]] = {}
    for row in graded:
        successes.setdefault(task_name(row["task_name"]), []).append(float(row["complete"]))
    seconds, passes = stats["seconds"], stats["policy_forward_passes"]
    return {
        "rollout/episodes": float(len(leading)),
        "rollout/success_rate": mean_of(float(row["complete"]) for row in graded),
        **{f"rollout/{task}/success_rate": mean_of(values) for task, values in successes.items()},
        **mixed_groups(graded),
        "rollout/return": mean_of(row["env_return"] for row in graded),
        "rollout/episode_length": mean_of(float(row["finish_step"]) for row in rows),
        "rollout/avg_response_length": mean_of(float(row["response_mask"].sum()) for row in rows),
        "rollout/truncated_share": mean_of(float(row["truncated"]) for row in rows),
        "rollout/entropy": mean_of(
            -float(
                (row["rollout_log_probs"] * row["response_mask"]).sum() / row["response_mask"].sum()
            )
            for row in rows
        ),
        "env/failed_episodes": float(len(result.failed)),
        "policy/calls": passes,
        "policy/calls_per_s": passes / seconds,
        "policy/batch_size": Weighted(stats["policy_calls"] / max(passes, 1.0), passes),
        "policy/busy_share": stats["policy_busy_s"] / seconds,
        "time/encode_video_s": stats.get("encode_s", 0.0),
        **{key: value for key, value in stats.items() if key.startswith(("env/", "memory/"))},
    }


def mixed_groups(graded: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    """Share of each task's groups with both a success and a failure: a 0/1 reward learns only from
    these.
    """
    return {
        f"rollout/{task}/mixed_groups": mean_of(map(float, mixed))
        for task, mixed in groups_by_task(graded).items()
    }


def groups_by_task(graded: Sequence[Mapping[str, Any]]) -> dict[str, list[bool]]:
    """Whether each group of a task has both a success and a failure; a single rollout is none."""
    outcomes: dict[tuple[str, int], list[bool]] = {}
    for row in graded:
        group = (task_name(row["task_name"]), int(row["index"]))
        outcomes.setdefault(group, []).append(bool(row["complete"]))
    mixed: dict[str, list[bool]] = {}
    for (task, _), seen in outcomes.items():
        if len(seen) > 1:
            mixed.setdefault(task, []).append(len(set(seen)) == 2)
    return mixed


def return_rollout_metrics(result: RolloutResult, stats: Mapping[str, float]) -> dict[str, Value]:
    """`rollout_metrics` without success rates, for an environment without a success flag."""
    return {
        name: value
        for name, value in rollout_metrics(result, stats).items()
        if not name.endswith(("success_rate", "mixed_groups"))
    }


def text_rollout_metrics(result: RolloutResult, stats: Mapping[str, float]) -> dict[str, Value]:
    """`rollout_metrics` for text: tokens instead of calls, and the parts of the reward."""
    parts: dict[str, list[float]] = {}
    for trajectory in result.trajectories:
        for name, value in trajectory.record.get("reward_parts", {}).items():
            parts.setdefault(name, []).append(value)
    metrics = rollout_metrics(result, stats)
    del metrics["time/encode_video_s"]
    passes, seconds = stats["policy_forward_passes"], stats["seconds"]
    return metrics | {
        "rollout/avg_prompt_length": mean_of(
            float(len(trajectory.row["prompts"])) for trajectory in result.trajectories
        ),
        "rollout/turns": mean_of(
            float(trajectory.row["finish_step"]) for trajectory in result.trajectories
        ),
        "rollout/rejected_episodes": float(len(result.rejected)),
        "rollout/ungraded_episodes": float(
            sum(not trajectory.row.get("graded", True) for trajectory in result.trajectories)
        ),
        "rollout/tokens_per_s": stats["policy_tokens"] / seconds,
        "policy/batch_size": Weighted(stats["policy_tokens"] / max(passes, 1.0), passes),
        **{f"rollout/reward/{name}": mean_of(values) for name, values in parts.items()},
    }


def mean_of(values: Iterable[float]) -> Weighted:
    """Mean of numbers with their count as weight; 0 if there are none."""
    found = list(values)
    return Weighted(sum(found) / max(len(found), 1), float(len(found)))
