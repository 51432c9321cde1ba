"""Rollout of language models: environments, engine and workflow of one rank."""

from collections.abc import Sequence
from typing import Any

from siirl.engine.rollout.executor import RolloutResult
from siirl.engine.rollout.generation import TextEngine
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow
from siirl.env_server.pool import EnvPool
from siirl.errors import ConfigError
from siirl.params.references import check_call, load_reference

WORKFLOW_KEY = "actor_rollout_ref.rollout.workflow"


class TextRollout(Rollout):
    """Runs episodes of one language model on one rank's environments.

    Args:
        engine: Generates text; closed with the rollout.
        pool: Environments.
        workflow: Runs an episode: `siirl.engine.rollout.text_workflow.TextWorkflow`, or a user's
            class.
    """

    engine: TextEngine

    def __init__(self, *, engine: TextEngine, pool: EnvPool, workflow: RolloutWorkflow) -> None:
        super().__init__(pool=pool, engine=engine, workflow=workflow)

    def generate(
        self, requests: Sequence[EpisodeRequest], **options: Any
    ) -> tuple[RolloutResult, dict[str, float]]:
        """See `Rollout`; afterwards the engine rests."""
        found = super().generate(requests, **options)
        self.engine.rest()
        return found

    def close(self) -> None:
        """End the environments and release the model; safe to call twice."""
        super().close()
        self.engine.close()


def make_text_workflow(reference: str | None, **arguments: Any) -> RolloutWorkflow:
    """Make `TextWorkflow`, or a user's workflow with the same arguments.

    Args:
        reference: `module:name` of a class or function; None: `TextWorkflow`.
        arguments: Arguments of `TextWorkflow`, by name; a user's workflow may take `**kwargs` for
            those it does not use.

    Raises:
        ConfigError: It cannot be imported or called with these arguments, or makes no
            RolloutWorkflow.
    """
    if reference is None:
        return TextWorkflow(**arguments)
    make = load_reference(reference, place=WORKFLOW_KEY)
    place = f"{WORKFLOW_KEY}={reference}"
    names = ", ".join(f"{name}=…" for name in arguments)
    check_call(make, (), arguments, place=place, call=f"({names})")
    workflow = make(**arguments)
    if not isinstance(workflow, RolloutWorkflow):
        raise ConfigError(
            f"{place} made a {type(workflow).__name__}; it must be a "
            "siirl.engine.rollout.workflow.RolloutWorkflow."
        )
    return workflow
