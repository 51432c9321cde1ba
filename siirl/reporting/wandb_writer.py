"""Weights & Biases: configuration, tags, metrics, videos, and tables of rollouts and success."""

from collections.abc import Mapping, Sequence

from siirl.errors import ConfigError
from siirl.reporting.metrics import Reduced, finite
from siirl.reporting.writer_contract import RunDescription, RunWriter, Table, Video


class WandbWriter(RunWriter):
    """Weights & Biases, if installed; its files stay in the run folder.

    WANDB_MODE=offline needs no account.

    Raises:
        ConfigError: It cannot start: no key, or no answer from the server.
    """

    def __init__(self, run: RunDescription) -> None:
        import wandb  # optional: check_loggers has refused a run without it

        self._wandb = wandb
        try:
            # No console capture: the progress bar is not a log.
            self._run = wandb.init(
                project=run.project,
                name=run.experiment,
                dir=str(run.folder),
                config=dict(run.config),
                tags=list(run.tags),
                notes=run.notice or None,
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"trainer.logger=wandb: {error} Type: wandb login; or set WANDB_MODE=offline to "
                "keep the files in the run folder, "
                "or use trainer.logger=[console,tensorboard]."
            ) from error

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Send the step; distributions without a finite value are left out."""
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
        lists = {name: finite(value) for name, value in metrics.items() if isinstance(value, list)}
        histograms = {name: self._wandb.Histogram(value) for name, value in lists.items() if value}
        self._run.log(numbers | histograms, step=step)

    def show_videos(self, *, step: int, videos: Sequence[Video]) -> None:
        """Send the files; each kind is one panel."""
        by_kind: dict[str, list[object]] = {}
        for video in videos:
            shown = self._wandb.Video(str(video.file), caption=video.caption, format="mp4")
            by_kind.setdefault(f"videos/{video.kind}", []).append(shown)
        self._run.log(by_kind, step=step)

    def show_table(self, *, step: int, name: str, table: Table) -> None:
        """Send the whole table."""
        shown = self._wandb.Table(
            columns=list(table.columns),
            data=[list(row) for row in table.rows],
            allow_mixed_types=True,
        )
        self._run.log({name: shown}, step=step)

    def close(self) -> None:
        """Finish the upload."""
        self._run.finish()
