"""The graph of a job as its configuration changes it: loaded, completed and checked."""

import inspect

from siirl.algos.advantages import ADVANTAGES
from siirl.algos.policy_losses import LOSS_TRAITS
from siirl.dag_worker.registries import load_plug_ins
from siirl.dag_worker.stages import generate, greedy_baseline, single_decisions
from siirl.errors import ConfigError, refuse
from siirl.execution.dag import NodeRole, TaskGraph, order_for_kl_in_reward
from siirl.execution.dag.buffers import check_buffers
from siirl.execution.dag.job_graph import check_one_policy, skip_unused, sync_at_the_end
from siirl.execution.dag.load import load_pipeline
from siirl.execution.dag.resource_groups import check_group_names
from siirl.params import SiiRLArguments, sizes
from siirl.params.agents import check_groups, config_of_group, group_configs
from siirl.params.algorithm_args import AlgorithmArguments
from siirl.params.model_args import ActorArguments
from siirl.preflight.prompt_columns import prompt_column_problems

WHOLE_EPISODES = "rows are whole episodes (actor_rollout_ref.rollout.n_steps)"


def load_graph(config: SiiRLArguments) -> TaskGraph:
    """The job's checked graph as it runs; registers the names that the job and its modules give.

    Nodes whose results are unused are marked as skipped, log-probs precede a reward that subtracts
    their KL, and trained policies without a sync node get one.
    """
    dag = config.dag
    graph = load_pipeline(
        pipeline=dag.pipeline,
        custom_pipeline_fn=dag.custom_pipeline_fn,
        workflow_file=dag.workflow_file,
    )
    if config.agent_configs:
        check_groups(config.agent_configs, graph.agent_groups())
    else:
        check_one_policy(graph)
    for own in group_configs(config).values():
        load_plug_ins(own, graph)
    for group in graph.agent_groups():
        own = config_of_group(config, group)
        order_for_kl_in_reward(graph, use_kl_in_reward=own.algorithm.use_kl_in_reward, group=group)
        skip_unused(
            graph,
            needs_reference=sizes.needs_reference(own.actor_rollout_ref.actor, own.algorithm),
            needs_old_log_probs=needs_old_log_probs(own.actor_rollout_ref.actor, own.algorithm),
            group=group,
        )
        if own.actor_rollout_ref.rollout.n_steps is None:
            skip_single_decisions(graph, group=group)
        else:
            check_no_baseline(graph, own.actor_rollout_ref.rollout.n_steps, group=group)
        check_one_rollout(graph, group=group)
    sync_at_the_end(graph)
    check_buffers(graph)
    check_group_names(graph)
    return graph


def needs_old_log_probs(actor: ActorArguments, algorithm: AlgorithmArguments) -> bool:
    """Whether old log-probs are needed in addition to those of rollout, which are on-policy and
    serve every mini-batch of the step.

    That acting and training agree is checked on the first mini-batch (`rollout/log_prob_gap`). KL
    in the reward needs its own column, and importance weights are the ratio of the two.
    """
    return algorithm.use_kl_in_reward or weighs_tokens(actor)


def weighs_tokens(actor: ActorArguments) -> bool:
    """Whether the loss has importance weights: old log-probs over those of rollout."""
    return actor.importance.level is not None or LOSS_TRAITS[actor.loss].own_weights


def check_one_rollout(graph: TaskGraph, *, group: int) -> None:
    """Refuse several nodes that play the prompts of one agent group.

    Raises:
        ConfigError: Names two of them and the remedy.
    """
    found = [
        node.node_id
        for node in graph.get_nodes()
        if node.executable is generate and node.agent_group == group
    ]
    if len(found) > 1:
        raise ConfigError(
            f"Nodes {found[0]!r} and {found[1]!r} of graph {graph.graph_id!r} both roll out for "
            f"agent group {group}: a step draws the group's prompts once, so both would play the "
            "same ones under the same uids. Let both branches depend on one rollout, or give the "
            "other branch an agent group with the same weights: agent_group=1 on its nodes, and "
            "agents={0: {}, 1: {shares: 0, data.seed: 1}}."
        )


def check_no_baseline(graph: TaskGraph, decisions: int, *, group: int) -> None:
    """Refuse cut episodes for a graph that plays greedy episodes as baselines.

    Raises:
        ConfigError: Names the node and the remedy.
    """
    for node in graph.get_nodes():
        if node.executable is greedy_baseline and node.agent_group == group:
            raise ConfigError(
                f"Node {node.node_id!r} of graph {graph.graph_id!r} plays whole greedy episodes as "
                f"baselines, but actor_rollout_ref.rollout.n_steps={decisions} cuts episodes: set "
                "it to null, or use pipeline=ppo."
            )


def skip_single_decisions(graph: TaskGraph, *, group: int) -> None:
    """Skip the nodes that cut rows into decisions: mini-batches are drawn from whole episodes."""
    for node in graph.get_nodes():
        if node.executable is single_decisions and node.agent_group == group:
            graph.skip_node(node.node_id, reason=WHOLE_EPISODES)


def require_configured_columns(config: SiiRLArguments, graph: TaskGraph) -> None:
    """Add the columns that the configured estimator and loss read to their nodes, and check.

    Raises:
        ConfigError: No earlier node provides a column: GAE lacks a critic's values, a KL loss the
            reference's log-probs, importance weights the old log-probs, or the first node a column
            that the prompts do not have.
    """
    for node in graph.get_nodes():
        own = config_of_group(config, node.agent_group)
        if node.node_role is NodeRole.ADVANTAGE:
            node.require(_columns_of_estimator(own.algorithm))
        elif node.node_role is NodeRole.ACTOR and not node.only_forward_compute:
            node.require(_columns_of_loss(own.actor_rollout_ref.actor))
    graph.check_columns()
    refuse(list(prompt_column_problems(config, graph)))


def _columns_of_estimator(algorithm: AlgorithmArguments) -> list[str]:
    parameters = inspect.signature(ADVANTAGES[algorithm.adv_estimator]).parameters
    return [name for name, parameter in parameters.items() if parameter.default is parameter.empty]


def _columns_of_loss(actor: ActorArguments) -> list[str]:
    read = {"ref_log_prob": sizes.has_kl_loss(actor), "old_log_probs": weighs_tokens(actor)}
    return [name for name, reads in read.items() if reads]
