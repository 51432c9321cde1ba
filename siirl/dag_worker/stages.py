"""Stages of the shipped pipelines: one function each, `stage(*, batch, context) -> NodeOutput`.

A stage adds columns or drops rows of a shallow copy of the batch. Stages contain no switch between
VLA policies and text; the objects in `context` differ instead. `@stage` declares type, role and
columns; pipelines do not repeat them. Not declared: columns that depend on environment, policy and
reward (`pixel_values`, `input_ids`, `video_embedding`).
"""

# B trajectory of this rank, T token

import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from siirl.algos.advantages import (
    ESTIMATOR_COLUMNS,
    ESTIMATOR_SETTINGS,
    estimate_advantages,
    reads_reward_at_finish,
)
from siirl.algos.trajectories import reward_at_finish
from siirl.dag_worker.accounting import work_of_update
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.empty_ranks import with_columns_of_all, with_columns_of_prompts
from siirl.dag_worker.rewards import (
    RewardOutcome,
    check_reward_failures,
    less_kl,
    outcomes_to_score,
    part_metric,
    score_rows,
    token_scores,
)
from siirl.data_coordinator.protocol.batch import select_rows, texts
from siirl.data_coordinator.redistribution import accepted_rows
from siirl.engine.actor.actor import require_agreement
from siirl.engine.actor.chunk_windows import rows_of_decisions
from siirl.errors import ConfigError
from siirl.execution.dag import Node, NodeOutput, NodeRole, NodeType, stage
from siirl.execution.dag.buffers import buffer_of
from siirl.execution.dag.columns import PROMPT_COLUMNS, PROMPT_ROW
from siirl.models.training_flops import flops_of_rows
from siirl.params import sizes
from siirl.reporting.metrics import Value, Weighted

EPISODE_COLUMNS = (
    *("uid", "responses", "response_mask", "rollout_log_probs", "policy_version"),
    *("finish_step", "complete", "truncated", "env_return"),
)


@stage(NodeType.DATA_LOAD, provides=PROMPT_COLUMNS)
def load_prompts(*, batch: TensorDict) -> NodeOutput:
    """This rank's prompts of the step; every DATA_LOAD node gets them, whatever its dependencies.

    A custom function may select among them, or add columns.
    """
    return NodeOutput(batch=batch)


@stage(
    NodeType.MODEL_INFERENCE,
    NodeRole.ROLLOUT,
    requires=PROMPT_COLUMNS,
    optional=[PROMPT_ROW],
    provides=EPISODE_COLUMNS,
)
def generate(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Roll out every prompt `rollout.n` times; one row per simulated episode."""
    output = context.collector.roll_out(batch, step=context.step)
    rows = with_columns_of_all(output.batch, ranks=context.ranks)
    if context.loader is not None:
        context.loader.observe(context.ranks.gather_objects(outcomes_by_task(rows)))
    return NodeOutput(batch=with_columns_of_prompts(rows, prompts=batch), metrics=output.metrics)


def outcomes_by_task(batch: TensorDict) -> dict[str, tuple[int, int]]:
    """Successes and graded trajectories per task."""
    graded_B = batch.get("graded", torch.ones(len(batch), dtype=torch.bool))
    columns = (texts(batch, "task_name"), batch["complete"].tolist(), graded_B.tolist())
    successes = Counter[str]()
    episodes = Counter[str]()
    for task, complete, graded in zip(*columns, strict=True):
        if graded:
            episodes[task] += 1
            successes[task] += bool(complete)
    return {task: (successes[task], count) for task, count in episodes.items()}


@stage(NodeType.PUT_TO_BUFFER)
def put_to_group(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Hand the rows of the prompts over to the group that trains."""
    context.require_exchange().put(batch)
    return NodeOutput(batch=batch)


@stage(NodeType.GET_FROM_BUFFER, provides=None)  # the columns of the rows that the group sends
def get_from_group(*, context: StageContext) -> NodeOutput:
    """Take this rank's rows of the step, or of a refill, from the group that rolls out."""
    return context.require_exchange().get(step=context.step, prompts=context.drawn_prompts)


@stage(
    NodeType.MODEL_INFERENCE,
    NodeRole.ROLLOUT,
    requires=PROMPT_COLUMNS,
    optional=[PROMPT_ROW],
    provides=["reward_baselines"],
)
def greedy_baseline(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Add the reward of a greedy response to each prompt; drop and count prompts without one."""
    output = context.collector.roll_out(batch, step=context.step, greedy=True)
    rows = with_columns_of_all(output.batch, ranks=context.ranks)
    scores = score_rows(rows, reward=context.reward, ranks=context.ranks)
    scored = [row for row in range(len(rows)) if row not in scores.failed]
    baselines = dict(
        zip(rows["index"][scored].tolist(), scores.reward_R[scored].tolist(), strict=True)
    )
    known = [place for place, index in enumerate(batch["index"].tolist()) if index in baselines]
    prompts = select_rows(batch, known)
    prompts["reward_baselines"] = torch.tensor(
        [baselines[index] for index in prompts["index"].tolist()], dtype=torch.float32
    )
    metrics: dict[str, Value] = {
        "reward/baseline": mean_over_rows(scores.reward_R[scored]),
        "sampling/dropped_without_baseline": float(len(batch) - len(prompts)),
        "env/failed_episodes": output.metrics["env/failed_episodes"],
    }
    return NodeOutput(batch=prompts, metrics=metrics)


@stage(NodeType.COMPUTE, requires=["uid"])
def own_rows(*, batch: TensorDict, agent_group: int) -> NodeOutput:
    """The rows that this node's agent group played in an environment of several agents.

    Raises:
        ConfigError: No node before it rolls out such an environment.
    """
    if "agent_group" not in batch.keys():
        raise ConfigError(
            "own_rows needs the column agent_group, which exists only if the environment names "
            "its agents (EnvSpec.agent_names, env.played_by): remove the node."
        )
    groups = batch["agent_group"].tolist()
    own = select_rows(batch, [row for row, group in enumerate(groups) if group == agent_group])
    return NodeOutput(batch=own, metrics={"data/trajectories": float(len(own))})


@stage(NodeType.PUT_TO_BUFFER, requires=["uid"])
def put_to_buffer(*, batch: TensorDict, context: StageContext, node: Node) -> NodeOutput:
    """Hand the rows to the GET_FROM_BUFFER node of the same buffer; pass them on as well."""
    context.require_buffer().put(batch, buffer=buffer_of(node))
    return NodeOutput(batch=batch)


@stage(NodeType.GET_FROM_BUFFER, moves_rows=True)
def get_from_buffer(*, context: StageContext, node: Node) -> NodeOutput:
    """This rank's share of the rows that all ranks put into the buffer."""
    rows = context.require_buffer().take(buffer=buffer_of(node), step=context.step)
    return NodeOutput(batch=rows, metrics={"data/trajectories": float(len(rows))})


@stage(NodeType.COMPUTE, requires=["uid", "index", "response_mask"], moves_rows=True)
def data_rebalance(*, batch: TensorDict, context: StageContext, node: Node) -> NodeOutput:
    """Balance the rows that the node's filter accepts over the ranks, by their work."""
    accepted = batch if node.filter is None else accepted_rows(batch, node.filter)
    balanced = context.redistribution.redistribute(
        accepted,
        node=node.node_id,
        step=context.step,
        flops_B=flops_of_rows(context.actor.engine.module, accepted),
    )
    tokens = float(balanced["response_mask"].sum())
    largest = context.ranks.maximum(torch.tensor(tokens)).item()
    total = context.ranks.sum(torch.tensor(tokens)).item()
    size = float(
        sum(
            value.numel() * value.element_size()
            for value in balanced.values()
            if isinstance(value, torch.Tensor)
        )
    )
    metrics: dict[str, Value] = {
        "data/trajectories": float(len(balanced)),
        "data/bytes": size,
        "data/bytes_max_process": size,
        "data/bytes_moved": float(context.redistribution.bytes_given),
        "data/imbalance": largest * context.ranks.size / max(total, 1.0),
    }
    if node.filter is not None:
        metrics["sampling/dropped_filter_plugin"] = float(len(batch) - len(accepted))
    return NodeOutput(batch=balanced, metrics=metrics)


def start_scoring(*, batch: TensorDict, context: StageContext) -> Future[RewardOutcome] | None:
    """Score texts in the reward's processes while this rank runs other nodes."""
    reward = context.reward
    if not getattr(reward, "only_waits", False):
        return None
    outcomes = outcomes_to_score(batch, reward=reward, ranks=context.ranks)
    threads = ThreadPoolExecutor(1, thread_name_prefix="reward")
    try:
        return threads.submit(lambda: (outcomes, reward.score(outcomes)))
    finally:
        threads.shutdown(wait=False)


@stage(
    NodeType.COMPUTE,
    NodeRole.REWARD,
    requires=["uid", "index", "task_name", "complete", "env_return", "response_mask"],
    optional=["responses", "graded", "env_rewards", "old_log_probs", "ref_log_prob"],
    provides=["token_level_scores", "token_level_rewards"],
    start=start_scoring,
)
def compute_reward(
    *, batch: TensorDict, context: StageContext, started: RewardOutcome | None = None
) -> NodeOutput:
    """Reward every trajectory, placed by `token_scores`; drop and count rows that fail to score."""
    scores = score_rows(batch, reward=context.reward, ranks=context.ranks, started=started)
    share = context.config.reward.max_failed_share
    check_reward_failures(
        scores.failed, rows=len(batch), max_failed_share=share, ranks=context.ranks
    )
    context.collector.write_recordings(scores.reward_by_uid)
    kept = [row for row in range(len(batch)) if row not in scores.failed]
    if scores.failed:
        batch = select_rows(batch, kept)
    reward_B = scores.reward_R[kept]
    penalty_B = scores.penalty_R[kept]
    complete_B = batch["complete"].float()
    graded_B = batch.get("graded", torch.ones(len(batch), dtype=torch.bool))
    on_the_way = float(not reads_reward_at_finish(context.config.algorithm.adv_estimator))
    batch["token_level_scores"] = token_scores(
        batch, reward_B=reward_B, env_weight_B=on_the_way * scores.env_weight_R[kept]
    )
    batch["token_level_rewards"] = batch["token_level_scores"]
    metrics: dict[str, Value] = {
        **scores.metrics,  # over all ranks; the per-row metrics below override these
        **{
            part_metric(name): finite_mean(values_R[kept])
            for name, values_R in scores.parts.items()
        },
        "reward/mean_score": mean_over_rows(reward_B),
        "reward/penalty": mean_over_rows(penalty_B),
        "reward/score": reward_B.tolist(),
        "reward/failed": float(len(scores.failed)),
    }
    if context.collector.reports_success:
        metrics["reward/success_rate"] = mean_over_rows(complete_B[graded_B])
        metrics["reward/failure_score"] = reward_B[graded_B & (complete_B == 0)].tolist()
    if context.config.algorithm.use_kl_in_reward:
        batch["token_level_rewards"], kl_metrics = less_kl(batch, context)
        metrics |= kl_metrics
    batch["token_level_rewards"] = batch["token_level_rewards"] + reward_at_finish(
        rewards_B=penalty_B, mask_BT=batch["response_mask"]
    )
    return NodeOutput(batch=batch, metrics=metrics)


@stage(
    NodeType.COMPUTE,
    NodeRole.ADVANTAGE,
    requires=["token_level_rewards", "response_mask", "index"],
    optional=ESTIMATOR_COLUMNS,
    provides=["advantages", "returns"],
)
def compute_advantage(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Advantages by `algorithm.adv_estimator`; groups include the rows of other ranks."""
    algorithm = context.config.algorithm
    available = {name: batch[name] for name in ESTIMATOR_COLUMNS if name in batch.keys()}
    available |= {name: getattr(algorithm, name) for name in ESTIMATOR_SETTINGS}
    available["ranks"] = context.ranks
    batch["advantages"], batch["returns"] = estimate_advantages(
        name=algorithm.adv_estimator, available=available
    )
    size_B = batch["advantages"].abs().amax(dim=1) if len(batch) else batch["advantages"].sum(dim=1)
    return NodeOutput(batch=batch, metrics={"advantage/abs_mean": mean_over_rows(size_B)})


@stage(
    NodeType.MODEL_TRAIN,
    NodeRole.ACTOR,
    only_forward_compute=True,
    requires=["responses", "response_mask"],
    provides=["old_log_probs"],
)
def compute_old_log_prob(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Log-probs under the weights before the update: the denominator of the ratio where they differ
    from those of the rollout.
    """
    batch["old_log_probs"] = context.actor.compute_log_prob(batch).log_probs_BT
    return NodeOutput(batch=batch)


@stage(
    NodeType.MODEL_TRAIN,
    NodeRole.REFERENCE,
    only_forward_compute=True,
    requires=["responses", "response_mask"],
    provides=["ref_log_prob"],
)
def compute_ref_log_prob(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Log-probs under the reference policy."""
    batch["ref_log_prob"] = context.require_reference().compute_log_prob(batch).log_probs_BT
    return NodeOutput(batch=batch)


@stage(
    NodeType.MODEL_TRAIN,
    NodeRole.CRITIC,
    only_forward_compute=True,
    requires=["responses", "response_mask"],
    optional=["bootstrapped"],
    provides=["values", "value_mask"],
)
def compute_value(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """The critic's values, and a mask of the tokens that represent decisions.

    Rows of segments also get the value of the state that follows them.
    """
    values = context.require_critic().compute_values(batch)
    batch["values"], batch["value_mask"] = values.values_BT, values.value_mask_BT
    if "bootstrapped" in batch.keys():
        batch["bootstrap_values"] = context.require_critic().bootstrap_values(batch)
    return NodeOutput(batch=batch)


@stage(NodeType.COMPUTE, requires=["uid", "responses", "response_mask", "advantages"])
def single_decisions(*, batch: TensorDict) -> NodeOutput:
    """A row for each decision, so that mini-batches mix the decisions of all environments."""
    rows = rows_of_decisions(batch)
    return NodeOutput(batch=rows, metrics={"data/decisions": float(len(rows))})


@stage(
    NodeType.MODEL_TRAIN,
    NodeRole.CRITIC,
    requires=["responses", "response_mask", "values", "value_mask", "returns"],
)
def train_critic(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Update the critic towards the returns."""
    return NodeOutput(batch=batch, metrics=dict(context.require_critic().update(batch)))


@stage(
    NodeType.MODEL_TRAIN,
    NodeRole.ACTOR,
    requires=["policy_version", "responses", "response_mask", "advantages", "rollout_log_probs"],
    optional=["uid", "old_log_probs", "ref_log_prob"],
)
def train_actor(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Update the policy, and compare acting with training log-probs; skipped in critic warm-up."""
    if context.step <= context.config.trainer.critic_warmup:
        return NodeOutput(batch=batch, metrics={"actor/updates": 0.0, "critic/warmup": 1.0})
    # an agent that shares the weights may have stepped since the last sync
    config = context.config
    gpus = sizes.gpus_of_training_rank(config.actor_rollout_ref.rollout, config.dag)
    with work_of_update(context.actor.engine, gpus=gpus) as speed:
        metrics = context.actor.update(batch, policy_version=context.actor.engine.steps)
    on_gpu = context.actor.engine.device.type == "cuda"
    require_agreement(metrics, context.config.actor_rollout_ref, on_gpu=on_gpu)
    return NodeOutput(batch=batch, metrics={**metrics, **speed})


@stage(NodeType.BARRIER_SYNC)
def wait_for_all(*, batch: TensorDict) -> NodeOutput:
    """Pass the batch on; the worker waits for all ranks before it calls a BARRIER_SYNC node."""
    return NodeOutput(batch=batch)


@stage(NodeType.BARRIER_SYNC, NodeRole.ROLLOUT)
def sync_weights(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Copy the new weights to the rollout engine and verify them; nothing, if there are none.

    Weights that are sent to rollout ranks are only checked here.
    """
    begin = time.perf_counter()
    context.weights.end_step()
    return NodeOutput(
        batch=batch,
        metrics={
            "actor/weights_unchanged": float(context.weights.unchanged),
            "sync/bytes": float(context.weights.transferred_bytes),
            "sync/seconds": time.perf_counter() - begin,
        },
    )


def finite_mean(values_B: NDArray[np.float32]) -> Weighted:
    """Mean of the finite entries, with their number as weight."""
    there = np.isfinite(values_B)
    return Weighted(float(values_B[there].mean()) if there.any() else 0.0, float(there.sum()))


def mean_over_rows(values_B: torch.Tensor) -> Weighted:
    """Mean of a column with its number of rows as weight, for reduction over ranks."""
    return Weighted(float(values_B.double().mean()) if len(values_B) else 0.0, float(len(values_B)))
