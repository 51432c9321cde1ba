"""Checks resource groups (`dag.groups`): names, and settings that need colocated or separate ranks.

Left out: numbers of ranks, which `siirl.preflight.group_placement` checks when the graph is known.
"""

from collections.abc import Iterator

from siirl.errors import ConfigError, SiirlError, UnknownNameError
from siirl.execution.dag.resource_groups import GROUPS
from siirl.params.build import as_text
from siirl.params.domains import SERVER, VLLM
from siirl.params.training_args import SiiRLArguments

PIPELINES_WITH_REFILLS = ("dapo",)


def group_problems(config: SiiRLArguments) -> Iterator[SiirlError]:
    """Refuse unknown groups, and settings that need colocated or separate ranks."""
    groups, staleness = config.dag.groups, config.trainer.max_staleness
    for name, number in groups.items():
        if name not in GROUPS:
            yield UnknownNameError.of(kind="group in dag.groups", name=str(name), known=GROUPS)
        elif number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            yield ConfigError(
                f"dag.groups={{{name}: {_spelled(number)}}} must be a number of ranks, or null."
            )
        elif number is not None and number < 1:
            yield ConfigError(f"dag.groups={{{name}: {number}}}: a group has at least one rank.")
    if not groups:
        if staleness:
            yield ConfigError(
                f"trainer.max_staleness={staleness} lets rollouts run ahead of training, which "
                "needs separate rollout ranks: set dag.groups={rollout: 1, train: 1}."
            )
        return
    for name in GROUPS:
        if name not in groups:
            yield ConfigError(
                f"dag.groups lacks {name!r}: name {' and '.join(map(repr, GROUPS))}, or leave "
                "dag.groups out for colocated ranks."
            )
    yield from _of_separate(config)


def _spelled(value: object) -> str:
    """A value in command-line syntax; text is quoted, because it may look like a number."""
    return repr(value) if isinstance(value, str) else as_text(value)


def _of_separate(config: SiiRLArguments) -> Iterator[SiirlError]:
    rollout = config.actor_rollout_ref.rollout
    staleness = config.trainer.max_staleness
    if config.cluster.mode == "local":
        yield ConfigError(
            "dag.groups runs rollouts and training in separate processes, but cluster=local is one "
            "process: use cluster=ray."
        )
    if rollout.name == SERVER:
        yield ConfigError(
            "dag.groups with rollout=server: a server gets its weights from the training ranks. "
            "Use rollout=vllm, or leave dag.groups out."
        )
    if config.data.task_sampling == "learnable":
        yield ConfigError(
            "data.task_sampling=learnable chooses prompts by the outcomes of the last step, which "
            "separate rollout ranks do not know: use even, or leave dag.groups out."
        )
    if rollout.mode == "async" and not staleness and rollout.name != VLLM:
        yield ConfigError(
            "actor_rollout_ref.rollout.mode=async with trainer.max_staleness=0 would wait at every "
            "step: set trainer.max_staleness=1 or more."
        )
    refills = config.dag.shipped_graph in PIPELINES_WITH_REFILLS
    if staleness and config.trainer.deterministic and refills:
        yield ConfigError(
            f"trainer.deterministic=true with trainer.max_staleness={staleness} and "
            f"pipeline={config.dag.pipeline}: the prompts of a refill then depend on timing. Use "
            "algorithm.filter.max_refills=0 with pipeline=grpo, or max_staleness=0."
        )
