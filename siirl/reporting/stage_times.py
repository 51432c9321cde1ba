"""Identifies the time metrics that are stages of a step, so that stages add up to the step.

A held-out evaluation follows the step whose policy it measures; `time/step_s` does not include it.
The node that rolls out also encodes videos, so its seconds include encoding. Weights sent to
rollout ranks after the last node are a stage of their own (`time/send_weights_s`).
"""

STEP = "time/step_s"
EVALUATION = "time/evaluation_s"
ENCODING = "time/encode_video_s"


def stage_of(metric: str) -> str | None:
    """The graph node, or other stage, that `metric` times; None for other metrics."""
    if metric in (STEP, EVALUATION, ENCODING):
        return None
    if not (metric.startswith("time/") and metric.endswith("_s")):
        return None
    return metric.removeprefix("time/").removesuffix("_s")
