"""From a configuration that has passed `siirl.preflight.first_look` to a job that can start: graph,
names, machine, plan.
"""

import importlib.util
import inspect
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.archives import DAMAGE
from envs.base import EnvSpec
from siirl.algos.advantages import ADVANTAGES
from siirl.dag_worker.critic_components import needs_critic
from siirl.dag_worker.embodied_components import make_encoder
from siirl.dag_worker.manifest import EVALUATION_DUE, read_manifest, resolve_checkpoint
from siirl.dag_worker.registries import load_plug_ins
from siirl.engine.actor.actor_loss import ActorLoss
from siirl.engine.critic.value_model import PolicyFeatures
from siirl.engine.reward_manager.embodied_rewards import load_demonstration_clips
from siirl.errors import ConfigError, SiirlError
from siirl.execution.dag import NodeRole, TaskGraph, check_kl_in_reward_order
from siirl.execution.dag.load import load_pipeline
from siirl.execution.dag.unused import skip_unused
from siirl.models import ActionTokenizer
from siirl.models.policy_loader import build_policy
from siirl.params import SiiRLArguments, sizes
from siirl.params.build import as_text
from siirl.params.critic_sizes import describe_critic
from siirl.params.domains import is_text
from siirl.params.paths import find
from siirl.params.references import MISTAKES, check_call, is_reference, load_reference, tell
from siirl.params.refusals import refuse
from siirl.params.weight_files import parameters_in
from siirl.preflight.check_text import check_text
from siirl.preflight.config_checks import warnings_of
from siirl.preflight.machine import free_memory_bytes, machine_problems, total_memory_bytes
from siirl.preflight.memory import episodes_of_training, simulation_problems
from siirl.preflight.needed_files import find_resume
from siirl.preflight.plan import Plan, make_plan
from siirl.reporting.metric_writers import check_loggers

POLICY = "actor_rollout_ref.model.policy"
# parameters: up to here a policy is built whole before the start as well, for a second at most
BUILT_TWICE = 100_000_000
LOADED_TWICE_BYTES = 4 * BUILT_TWICE  # as much for the weights of a video encoder


@dataclass(frozen=True)
class Job:
    """A checked job."""

    graph: TaskGraph
    plan: Plan
    warnings: tuple[str, ...]


def prepare(config: SiiRLArguments, spec: EnvSpec) -> Job:
    """Build the graph, check what is left, and work out the plan.

    `trainer.resume` becomes the folder to go on from, or None; nothing is recorded of an
    environment that cannot be rendered.

    Raises:
        ConfigError: What cannot work.
        MissingAssetError: No OpenGL, or no folder to go on from.
        CheckpointError: Weights of another model, or a checkpoint that is not whole.
    """
    graph = load_graph(config)
    load_plug_ins(config, graph)
    require_configured_columns(config, graph)
    refuse(machine_problems(config))
    check_loggers(config.trainer.logger)
    if is_text(spec):
        check_text(config)
    else:
        check_policy(
            config,
            spec,
            with_critic=needs_critic(graph),
            with_adapters=config.actor_rollout_ref.model.lora.rank > 0,
        )
        check_reward(config)
        check_encoder(config)
        check_demonstrations(config, spec)
    begins = check_resume(config)
    warnings = [
        *([spec.notice] if spec.notice else []),
        *warnings_of(config, spec),
        *([] if is_text(spec) else _without_videos(config, spec)),
    ]
    loss = ActorLoss(
        config.actor_rollout_ref.actor, horizon=1
    ).describe()  # the horizon is known when the policy is
    critic = describe_critic(config) if needs_critic(graph) else None
    cores = len(os.sched_getaffinity(0))
    plan = make_plan(
        config,
        graph,
        spec,
        free_memory_bytes=free_memory_bytes(),
        cores=cores,
        loss=loss,
        critic=critic,
        begins=begins,
    )
    refuse(
        simulation_problems(
            config, spec, episodes_of_training(config), total_memory_bytes=total_memory_bytes()
        )
    )
    return Job(graph=graph, plan=plan, warnings=tuple(warnings))


def check_resume(config: SiiRLArguments) -> str | None:
    """Find and examine what `trainer.resume` goes on from, and write its folder, or None, in its
    place.

    Returns:
        Where the run begins, in words; None for an ordinary one.

    Raises:
        ConfigError: The folder holds no checkpoint, or one after which no step is left.
        MissingAssetError: There is no such folder.
        CheckpointError: The checkpoint is not whole.
    """
    wanted, folder, total = config.trainer.resume, find_resume(config), config.trainer.total_steps
    config.trainer.resume = None if folder is None else str(folder)
    if folder is None:
        return (
            None
            if wanted is None
            else f"anew: trainer.resume={wanted} finds no checkpoint of {config.trainer.experiment_name}"
        )
    manifest = read_manifest(resolve_checkpoint(folder))
    step = int(manifest["step"])
    if total is not None and step >= total and not manifest.get(EVALUATION_DUE, False):
        raise ConfigError(
            f"trainer.resume={wanted}: {folder} has done {step} steps, and trainer.total_steps={total}, so that none is left: raise "
            f"trainer.total_steps, or measure the policy: python -m siirl.evaluate checkpoint={folder}"
        )
    return f"after step {step} of {folder}"


def load_graph(config: SiiRLArguments) -> TaskGraph:
    """The job's graph, checked, with the nodes skipped whose results nobody would use."""
    dag = config.dag
    graph = load_pipeline(
        pipeline=dag.pipeline,
        custom_pipeline_fn=dag.custom_pipeline_fn,
        workflow_file=dag.workflow_file,
    )
    check_kl_in_reward_order(graph, use_kl_in_reward=config.algorithm.use_kl_in_reward)
    skip_unused(
        graph,
        needs_reference=sizes.needs_reference(config),
        needs_old_log_probs=sizes.needs_old_log_probs(config),
    )
    return graph


def require_configured_columns(config: SiiRLArguments, graph: TaskGraph) -> None:
    """Require of the advantage and of the update the columns that the configuration makes them
    read.

    Raises:
        ConfigError: No node before them provides one: GAE without a critic's values, a KL in the
            loss without the reference's log-probs.
    """
    parameters = inspect.signature(ADVANTAGES[config.algorithm.adv_estimator]).parameters
    of_estimator = [
        name for name, parameter in parameters.items() if parameter.default is parameter.empty
    ]
    of_loss = ["ref_log_prob"] if config.actor_rollout_ref.actor.use_kl_loss else []
    for node in graph.get_nodes():
        if node.node_role is NodeRole.ADVANTAGE:
            node.require(of_estimator)
        elif node.node_role is NodeRole.ACTOR and not node.only_forward_compute:
            node.require(of_loss)
    graph.check_columns()


def check_policy(
    config: SiiRLArguments, spec: EnvSpec, *, with_critic: bool = False, with_adapters: bool = False
) -> None:
    """Build the policy once, here, so that what cannot be built, or fits neither weights nor
    environment, starts no process.

    Large weights are not read twice: of an OpenVLA names and shapes are compared, of a policy of
    the user's own whose weights are large the reference is imported and its signature compared.

    Raises:
        ConfigError: A policy that does not fit the environment, options that it does not take, or
            code of the user's that raises.
        CheckpointError: Weights of another model.
    """
    model = config.actor_rollout_ref.model
    own, path = is_reference(model.policy), None if model.path is None else str(find(model.path))
    large = path is not None and parameters_in(path) > BUILT_TWICE
    place = f"{POLICY}={model.policy}"
    if own:
        make = load_reference(model.policy, place=POLICY)
        check_call(make, (spec, path), model.options, place=place, call="(spec, path, **options)")
        if large:
            return
    place += f" actor_rollout_ref.model.options={as_text(model.options)}"
    try:
        policy = build_policy(
            model.policy,
            path=path,
            spec=spec,
            seed=config.trainer.seed,
            options=model.options,
            weights=not large,
        )
        if path is not None:
            policy.check_options(spec, options=model.options, path=path)
        check_actions(policy.action_tokenizer, spec, place=place)
        if with_critic:
            PolicyFeatures(policy)  # refuses one without features
        if with_adapters:
            policy.check_adapters(model.lora)
    except SiirlError:
        raise
    except MISTAKES as error:
        if own:
            raise ConfigError(
                f"{place}: building it for env={config.env.name} raised {tell(error)}."
            ) from error
        if not isinstance(error, ArithmeticError | RuntimeError | TypeError | ValueError):
            raise
        raise ConfigError(f"{place} does not fit env={config.env.name}: {error}") from error


def check_actions(tokenizer: ActionTokenizer, spec: EnvSpec, *, place: str) -> None:
    """The lowest and the highest action that a policy can say must be ones of the environment.

    Raises:
        ConfigError: One is not.
    """
    for token in (0, tokenizer.bins - 1):
        action = tokenizer.decode(np.full(tokenizer.dimensions, token, np.int64))[0]
        if not spec.action_space.contains(action):
            raise ConfigError(
                f"{place} can act with {action}, which is outside of the action space {spec.action_space} of environment {spec.name!r}: "
                "give its action_tokenizer the environment's bounds (siirl.models.ActionTokenizer.for_space)."
            )


def check_reward(config: SiiRLArguments) -> None:
    """Import a reward of the user's own, and compare its signature.

    Raises:
        ConfigError: There is none of that name, importing it raises, or it cannot be called with
            the reward's arguments.
    """
    name = config.reward.name
    if is_reference(name):
        make = load_reference(name, place="reward.name")
        check_call(make, (config.reward,), {}, place=f"reward.name={name}", call="(config.reward)")


def check_encoder(config: SiiRLArguments) -> None:
    """Load the reward's video encoder, where that takes a second at most; a hub id is looked for by
    the workers.

    Raises:
        ConfigError: It is no encoder.
    """
    name = config.reward.encoder
    if name is None or not sizes.needs_video(config):
        return
    path = Path(name)
    if ("/" in name and not path.exists()) or _weights_bytes(path) > LOADED_TWICE_BYTES:
        return
    try:
        make_encoder(config)
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"reward.encoder={name} cannot be loaded: {error} Take reward.encoder=tiny, or see vjepa.encoders."
        ) from error


def _weights_bytes(path: Path) -> int:
    files = path.glob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def check_demonstrations(config: SiiRLArguments, spec: EnvSpec) -> None:
    """Open the demonstrations' clips.

    Raises:
        ConfigError: They are none, or of no task of the job.
    """
    file = config.reward.demonstrations
    if file is None:
        return
    place = f"reward.demonstrations={file}"
    try:
        tasks = load_demonstration_clips(str(find(file)))
    except (AttributeError, MemoryError, ValueError, *DAMAGE) as error:
        raise ConfigError(
            f"{place} holds no clips ({error}): make some with python -m siirl.warm_start --clips FILE."
        ) from error
    if not tasks.keys() & set(spec.tasks):
        raise ConfigError(
            f"{place} has clips of {', '.join(sorted(tasks)) or 'nothing'}, and this job has the tasks {', '.join(spec.tasks)}: "
            "take demonstrations of these, or leave it out."
        )


def _without_videos(config: SiiRLArguments, spec: EnvSpec) -> list[str]:
    """Record nothing of an environment that cannot be rendered, and say so."""
    trainer = config.trainer
    if spec.renders or not (trainer.record_episodes or trainer.record_val_episodes):
        return []
    trainer.record_episodes = trainer.record_val_episodes = 0
    without_pygame = config.env.name == "gymnasium" and importlib.util.find_spec("pygame") is None
    remedy = (
        " Gymnasium draws its small environments with pygame: pip install pygame."
        if without_pygame
        else ""
    )
    keys = "trainer.record_episodes, trainer.record_val_episodes"
    return [
        f"{', '.join(spec.tasks)} cannot be rendered here, so no videos are recorded ({keys}).{remedy}"
    ]
