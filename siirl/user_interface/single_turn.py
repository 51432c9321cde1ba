"""Trajectories of workflows that score answers themselves, without an environment.

    response = await engine.agenerate(request)
    return single_turn(request, response, group_id=number, reward=my_reward(response.tokens))

Left out: several turns (`siirl.engine.rollout.text_workflow`, with an environment).
"""

from siirl.engine.rollout.dialogue import Dialogue
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.engine.rollout.workflow import EpisodeRequest, Trajectory


def single_turn(
    request: GenerationRequest,
    response: GenerationResponse,
    *,
    group_id: int,
    reward: float,
    task: str = "",
) -> Trajectory:
    """The row of one answer, with the columns of `TextWorkflow`.

    Args:
        request: The request; its `uid` identifies the row.
        response: The answer.
        group_id: Rows of one question share it; becomes the column `index`.
        reward: Becomes `env_return`, and `complete` if positive.
        task: Name of the task, for metrics.
    """
    dialogue = Dialogue(prompt=request.input_ids, messages=[])
    dialogue.say(response)
    dialogue.end_turn("", 0)
    dialogue.note(reward, {"success": reward > 0})
    of = EpisodeRequest(
        uid=request.uid,
        group_id=group_id,
        task=task,
        task_id=0,
        trial_id=group_id,
        seed=0,
        policy_seed=request.seed,
    )
    truncated = response.finish_reason == "length"
    return Trajectory(row=dialogue.row(of, uid=request.uid, truncated=truncated))
