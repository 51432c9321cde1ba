"""Final message of a run that ended early: its newest checkpoint and the key that resumes it."""

from pathlib import Path

NEWEST_CHECKPOINT = "checkpoints/latest"
"""In a run folder: the pointer that siirl.dag_worker.checkpoint writes."""
RESUME = "Resume with the same command and trainer.resume"


def describe_resume(folder: Path, before: str | None = None) -> str:
    """Describe how to resume a run that ended early, or `before`, the run that it had resumed."""
    pointer = folder / NEWEST_CHECKPOINT
    if not pointer.is_file() and before is not None:
        return f"This run saved no checkpoint\n{RESUME}={before}"
    if not pointer.is_file():
        return f"There is no checkpoint yet (trainer.save_freq)\nThe run folder is {folder}"
    # the last message must not fail if the disk does
    name = pointer.read_text(errors="replace").strip()
    return f"The last checkpoint is {pointer.parent / name}\n{RESUME}={folder}"
