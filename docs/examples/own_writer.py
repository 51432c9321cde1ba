"""A metric writer of your own: a line of numbers for each step; no file of siirl changes.

siirl train pipeline=grpo env=math user_modules=[own_writer] trainer.logger=[console,lines]
"""

from collections.abc import Mapping

from siirl.reporting.metric_writers import register_writer
from siirl.reporting.metrics import Reduced
from siirl.reporting.writer_contract import RunDescription


@register_writer("lines")
class Lines:
    """Appends to `lines.txt` of the run folder; a resumed run continues the file."""

    def __init__(self, run: RunDescription) -> None:
        self._file = (run.folder / "lines.txt").open("a")

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Write the numbers; distributions are lists, and are left out."""
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
        self._file.write(f"{step} {numbers}\n")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()
