"""Checks critics, baselines and length penalties against the other keys.

`siirl.preflight.config_checks` reports these errors along with its own. A shipped pipeline is
checked by name. A user's graph may provide any column; its columns are checked once it is loaded.
"""

from collections.abc import Collection, Iterator

from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.algorithm_args import AlgorithmArguments
from siirl.params.critic_args import CriticArguments
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.env_args import EnvArguments
from siirl.params.registered_names import estimators_taking
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import SiiRLArguments

WITH_CRITIC = "ppo"
WITH_BASELINES = "remax"
PROVIDED = {
    "values": (WITH_CRITIC, "the values of a critic"),
    "reward_baselines": (
        WITH_BASELINES,
        "the column reward_baselines, the reward of a greedy rollout of each prompt",
    ),
}
"""Columns that only one shipped pipeline provides: the pipeline's name, and a description of the
column."""
MINI_BATCH = "critic.ppo_mini_batch_size"
ACTOR_MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"


def estimator_problems(
    algorithm: AlgorithmArguments, dag: DagArguments, *, built_in: Collection[str]
) -> Iterator[SiirlError]:
    """Advantage estimators that do not fit the pipeline.

    Args:
        algorithm: Names the estimator.
        dag: Names the pipeline.
        built_in: Names of siirl's estimators; the columns that a user's estimator reads are
            unknown.
    """
    estimator, pipeline = algorithm.adv_estimator, dag.pipeline
    if dag.own_graph:
        return
    needed = [PROVIDED[column] for column in PROVIDED if estimator in estimators_taking(column)]
    for wanted, in_words in needed:
        if pipeline != wanted:
            yield ConfigError(
                f"algorithm.adv_estimator={estimator} needs {in_words}, which pipeline={pipeline} "
                f"does not provide: use pipeline={wanted}, or set dag.custom_pipeline_fn to your "
                "own graph that provides it."
            )
    for column, (provider, in_words) in PROVIDED.items():
        if provider == pipeline and not needed and estimator in built_in:
            yield ConfigError(
                f"pipeline={pipeline} provides {in_words}, which "
                f"algorithm.adv_estimator={estimator} does not read: take "
                f"algorithm.adv_estimator={' or '.join(estimators_taking(column))}, or "
                "pipeline=grpo."
            )


def nearest_divisor(samples: int, mini_batch: int) -> int:
    """The size nearest to `mini_batch` that divides the samples of a step."""
    return min(
        (size for size in range(1, samples + 1) if samples % size == 0),
        key=lambda size: abs(size - mini_batch),
    )


def undivided(
    data: DataArguments, rollout: RolloutArguments, mini_batch: int, *, place: str
) -> Iterator[SiirlError]:
    """Refuse a mini-batch size that does not divide the samples of a step."""
    batch, decisions = data.train_batch_size, rollout.n_steps
    samples = sizes.samples_per_step(data, rollout)
    if samples % mini_batch == 0:
        return
    nearest = nearest_divisor(samples, mini_batch)
    if decisions is None:
        yield ConfigError(
            f"{place}={mini_batch} does not divide data.train_batch_size={batch} (both count "
            f"prompts over all ranks): make it {nearest}, or another divisor."
        )
    else:
        yield ConfigError(
            f"{place}={mini_batch} does not divide data.train_batch_size={batch} x "
            f"actor_rollout_ref.rollout.n_steps={decisions} = {samples} decisions: make it "
            f"{nearest}, or another divisor."
        )


def critic_problems(
    critic: CriticArguments, data: DataArguments, rollout: RolloutArguments
) -> Iterator[SiirlError]:
    """A critic's mini-batch that does not divide the samples of a step."""
    if critic.ppo_mini_batch_size is not None:  # otherwise the actor's, which is checked
        yield from undivided(data, rollout, critic.ppo_mini_batch_size, place=MINI_BATCH)


def mini_batches_of(config: SiiRLArguments) -> dict[str, int]:
    """Mini-batches that the training ranks divide among them: prompts by key."""
    actor = {ACTOR_MINI_BATCH: config.actor_rollout_ref.actor.ppo_mini_batch_size}
    own = config.critic.ppo_mini_batch_size
    return actor if own is None else actor | {MINI_BATCH: own}


def overlong_problems(
    algorithm: AlgorithmArguments, data: DataArguments, env: EnvArguments, *, text: bool
) -> Iterator[SiirlError]:
    """Errors in the keys of DAPO's overlong penalty; `text`: whether responses are texts, whose
    tokens the penalty counts.
    """
    overlong, longest = algorithm.overlong, data.max_response_length
    if overlong.buffer is None:
        return
    place = f"algorithm.overlong.buffer={overlong.buffer}"
    if not text:
        yield ConfigError(
            f"{place} counts tokens of text, but env={env.name} takes actions: "
            "env.max_episode_steps bounds its episodes. Leave it out."
        )
    elif overlong.penalty == 0:
        yield ConfigError(
            f"{place} has no effect while algorithm.overlong.penalty=0: set a penalty (DAPO's is "
            "1), or leave it out."
        )
    elif overlong.buffer > longest:
        yield ConfigError(
            f"{place} is more than data.max_response_length={longest}: lower it; the paper uses a "
            "fifth."
        )
