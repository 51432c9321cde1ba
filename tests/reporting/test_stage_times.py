"""Seconds of a step by stage, in the terminal: they add up."""

from siirl.reporting.console import stage_line


def test_stages_add_up_to_the_step_and_its_evaluation_is_separate() -> None:
    """An evaluation is not in the step's seconds; encoding is a part of the rollout's."""
    seconds = {"step": 58.8, "rollout": 47.6, "train": 10.0, "evaluation": 40.4}
    metrics = {f"time/{name}_s": value for name, value in seconds.items()}
    metrics["time/encode_video_s"] = 20.0
    line = "58.8 s: rollout 47.6, train 10; evaluation 40.4 s"
    assert stage_line(metrics) == line
    assert stage_line(metrics, room=len(line) - 1) == line.replace(", train 10", "")
    assert stage_line({"time/evaluation_s": 40.4}) == "evaluation 40.4 s"
