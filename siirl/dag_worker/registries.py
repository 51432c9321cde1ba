"""Registries behind the plug-in keys, and registration of `module:name` references.

In every process, `module:name` is imported, checked and registered under that text, so that every
lookup finds it. `siirl.params.plug_ins` lists the keys that take plug-ins and the checks that run
before torch is imported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from siirl.algos.advantages import ADVANTAGES, register_adv_est
from siirl.algos.aggregation import AGGREGATIONS, register_aggregation
from siirl.algos.call import check_arguments, parameters_of
from siirl.algos.filters import (
    FILTER_ARGUMENTS,
    FILTERS,
    MEASURES,
    register_filter,
    register_filter_metric,
)
from siirl.algos.kl import KL_ESTIMATORS, KL_NAMES, is_kl_estimator, register_kl_estimator
from siirl.algos.policy_losses import LOSS_TRAITS, POLICY_LOSSES
from siirl.algos.policy_losses import register_policy_loss as register_token_loss
from siirl.compat.loss_registration import POLICY_LOSS_REGISTRY, register_policy_loss
from siirl.engine.training.schedules import SCHEDULES, register_schedule
from siirl.errors import ConfigError, SiirlError, UnknownNameError, refuse
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.function_names import resolve_function
from siirl.params import SiiRLArguments
from siirl.params.plug_ins import ANY_REFERENCE, import_user_modules, plug_ins
from siirl.params.references import is_reference, load_reference
from siirl.reporting.metric_writers import WRITERS, register_writer

DOCUMENTS_LOSS = frozenset({"log_prob", "old_log_prob"})
"""Arguments that identify a loss in the form of `siirl.compat.core_algos`."""


def register_loss(name: str) -> Callable[[Any], Any]:
    """Register a policy loss of either form; a registered loss keeps its traits."""

    def register(function: Any) -> Any:
        registered = (*POLICY_LOSSES.items(), *POLICY_LOSS_REGISTRY.items())
        known = [other for other, loss in registered if loss is function]
        if known:
            POLICY_LOSSES[name] = POLICY_LOSSES[known[0]]
            LOSS_TRAITS[name] = LOSS_TRAITS[known[0]]
        elif callable(function) and DOCUMENTS_LOSS & {*parameters_of(function, kind="policy loss")}:
            register_policy_loss(name)(function)
        else:
            register_token_loss(name)(function)
        return function

    return register


@dataclass(frozen=True)
class Registry:
    """Registry that a key looks up its names in."""

    known: Mapping[str, Any]
    register: Callable[[str], Callable[[Any], Any]]
    """Decorator that checks an object and registers it under a name."""


_KL = Registry(KL_ESTIMATORS, register_kl_estimator)
_SCHEDULES = Registry(SCHEDULES, register_schedule)

REGISTRIES: dict[str, Registry] = {
    "algorithm.adv_estimator": Registry(ADVANTAGES, register_adv_est),
    "algorithm.kl_penalty": _KL,
    "algorithm.filter.name": Registry(FILTERS, register_filter),
    "algorithm.filter.metric": Registry(MEASURES, register_filter_metric),
    "actor_rollout_ref.actor.loss": Registry(POLICY_LOSSES, register_loss),
    "actor_rollout_ref.actor.loss_agg_mode": Registry(AGGREGATIONS, register_aggregation),
    "actor_rollout_ref.actor.kl_loss_type": _KL,
    "actor_rollout_ref.actor.optim.scheduler": _SCHEDULES,
    "critic.optim.scheduler": _SCHEDULES,
    "trainer.logger": Registry(WRITERS, register_writer),
}
"""Every key declared with `plug_in=True`, and its registry."""


def load_plug_ins(config: SiiRLArguments, graph: TaskGraph) -> None:
    """Import the configured modules and register every `module:name` in this process.

    Raises:
        ConfigError: Lists all imports that failed, objects of the wrong kind and unknown names.
    """
    import_user_modules(config.user_modules)
    if config.dag.custom_pipeline_fn is not None:
        resolve_function(config.dag.custom_pipeline_fn, owner="dag.custom_pipeline_fn")
    for node in graph.get_nodes():
        _ = node.executable  # its module may register names
    refuse(
        [
            problem
            for key, name in plug_ins(config)
            if (problem := _look_up(key.place, name)) is not None
        ]
    )
    rule = config.algorithm.filter.name
    if rule is not None and config.dag.shipped_graph == "embodied_srpo":
        # its reward follows its filter
        check_arguments(
            FILTERS[rule],
            known=FILTER_ARGUMENTS.keys() - {"values_B"},
            kind="filter of pipeline=embodied_srpo",
        )


def _look_up(place: str, name: str) -> SiirlError | None:
    registry = REGISTRIES[place]
    if is_reference(name):
        try:
            registry.register(name)(load_reference(name, place=place))
        except ConfigError as error:
            sentence = str(error)
            return (
                error if sentence.startswith(place) else ConfigError(f"{place}={name}: {sentence}")
            )
    elif name not in registry.known and not (registry is _KL and is_kl_estimator(name)):
        return UnknownNameError.of(
            kind=place,
            name=name,
            known=[*(KL_NAMES if registry is _KL else registry.known), ANY_REFERENCE],
        )
    return None
