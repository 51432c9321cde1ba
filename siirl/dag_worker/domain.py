"""What differs between domains in a training step: turning prompts into trajectories. Robots here; text brings its own.

A domain is the one object that knows what a prompt of its kind looks like; stages and worker treat all alike.
"""

# B prompt or trajectory

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tensordict import TensorDict

from siirl.dag_worker.metrics import Value, Weighted
from siirl.dag_worker.record import EpisodeRecorder
from siirl.data_coordinator.protocol.batch import texts
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.engine.collectives import Collectives
from siirl.engine.rollout.embodied_rollout import EmbodiedRollout, requests_for_prompts
from siirl.execution.dag import NodeOutput
from siirl.params import SiiRLArguments


class Domain(Protocol):
    """Rolls out the prompts of a step."""

    def roll_out(self, batch: TensorDict, *, step: int) -> NodeOutput:
        """A batch with one row a finished trajectory."""

    def rewarded(self, rewards: Mapping[str, float]) -> None:
        """The rewards of trajectories by uid, for whoever shows them."""


class EmbodiedDomain:
    """Tasks of simulators: a prompt is a task with a start state, a trajectory an episode."""

    def __init__(self, *, config: SiiRLArguments, rollout: EmbodiedRollout, recorder: EpisodeRecorder, ranks: Collectives) -> None:
        self.config, self.rollout, self.recorder, self.ranks = config, rollout, recorder, ranks

    def roll_out(self, batch: TensorDict, *, step: int) -> NodeOutput:
        """Run every prompt `rollout.n` times; a row for every episode that could be simulated."""
        prompts = [
            {
                "index": int(batch["index"][i]),
                "task_name": task_name,
                "task_id": int(batch["task_id"][i]),
                "trial_id": int(batch["trial_id"][i]),
                "seed": int(batch["seed"][i]),
            }
            for i, task_name in enumerate(texts(batch, "task_name"))
        ]
        requests = requests_for_prompts(
            prompts,
            rollouts=self.config.actor_rollout_ref.rollout.n,
            run_seed=self.config.trainer.seed,
            step=step,
            record=share_of(self.config.trainer.record_episodes, self.ranks),
        )
        result, stats = self.rollout.generate(requests, embed=True)
        self.recorder.keep(result.trajectories, kind="train", step=step)
        rows = [trajectory.row for trajectory in result.trajectories]
        return NodeOutput(
            batch=Samples2Dict([Sample(row) for row in rows]), metrics=rollout_metrics(rows, stats, failed=len(result.failed))
        )

    def rewarded(self, rewards: Mapping[str, float]) -> None:
        """Write the videos of the step."""
        self.recorder.write(rewards)


def share_of(count: int, ranks: Collectives) -> int:
    """This rank's share of `count` things."""
    return count // ranks.size + (ranks.rank < count % ranks.size)


def rollout_metrics(rows: Sequence[dict[str, Any]], stats: dict[str, float], *, failed: int) -> dict[str, Value]:
    """What a rollout says of itself: before any filter, over everything that could be simulated."""
    count = float(len(rows))
    successes: dict[str, list[float]] = {}
    for row in rows:
        successes.setdefault(row["task_name"], []).append(float(row["complete"]))

    def mean(values: Sequence[float]) -> Weighted:
        return Weighted(sum(values) / max(len(values), 1), float(len(values)))

    seconds, passes = stats["seconds"], stats["policy_forward_passes"]
    return {
        "rollout/episodes": count,
        "rollout/success_rate": mean([float(row["complete"]) for row in rows]),
        **{f"rollout/{task}/success_rate": mean(values) for task, values in successes.items()},
        "rollout/return": mean([row["env_return"] for row in rows]),
        "rollout/episode_length": mean([float(row["finish_step"]) for row in rows]),
        "rollout/avg_response_length": mean([float(row["response_mask"].sum()) for row in rows]),
        "rollout/truncated_share": mean([float(row["truncated"]) for row in rows]),
        "rollout/entropy": mean(
            [-float((row["rollout_log_probs"] * row["response_mask"]).sum() / row["response_mask"].sum()) for row in rows]
        ),
        "env/failed_episodes": float(failed),
        "policy/calls": passes,
        "policy/calls_per_s": passes / seconds,
        "policy/batch_size": Weighted(stats["policy_calls"] / max(passes, 1.0), passes),
        "policy/busy_share": stats["policy_busy_s"] / seconds,
        "time/encode_video_s": stats.get("encode_s", 0.0),
        **{name: value for name, value in stats.items() if name.startswith("env/")},
    }
