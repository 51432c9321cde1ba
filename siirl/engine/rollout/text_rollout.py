"""The rollout of language models: environments, engine and workflow held together for one rank.

Everything that it does is `Rollout`'s; here stands what it is made of.
"""

from typing import Any

from siirl.engine.rollout.generation import TextEngine
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import RolloutWorkflow
from siirl.env_server.pool import EnvPool
from siirl.errors import ConfigError
from siirl.params.references import check_call, load_reference

WORKFLOW_KEY = "actor_rollout_ref.rollout.workflow"


class TextRollout(Rollout):
    """Runs episodes of one language model on one rank's environments; start it, and close it.

    Args:
        engine: Generates; closed with the rollout.
        pool: Environments.
        workflow: How an episode runs: `siirl.engine.rollout.text_workflow.TextWorkflow`, or a
            user's own.
    """

    engine: TextEngine

    def __init__(self, *, engine: TextEngine, pool: EnvPool, workflow: RolloutWorkflow) -> None:
        super().__init__(pool=pool, engine=engine, workflow=workflow)

    def close(self) -> None:
        """End the environments and let go of the model; safe to call twice."""
        super().close()
        self.engine.close()


def make_text_workflow(reference: str | None, **arguments: Any) -> RolloutWorkflow:
    """The shipped workflow, or one of a user's own, which is made with the same arguments.

    Args:
        reference: `module:name` of a class or function; None: `TextWorkflow`.
        arguments: Those of `TextWorkflow`, all of them by name; one's own may take `**kwargs` for
            those it has no use for.

    Raises:
        ConfigError: It cannot be imported or called with these arguments, or makes no
            RolloutWorkflow.
    """
    if reference is None:
        return TextWorkflow(**arguments)
    own, place = load_reference(reference, place=WORKFLOW_KEY), f"{WORKFLOW_KEY}={reference}"
    check_call(
        own, (), arguments, place=place, call=f"({', '.join(f'{name}=…' for name in arguments)})"
    )
    workflow = own(**arguments)
    if not isinstance(workflow, RolloutWorkflow):
        raise ConfigError(
            f"{place} made a {type(workflow).__name__}; it must be a siirl.engine.rollout.workflow.RolloutWorkflow."
        )
    return workflow
