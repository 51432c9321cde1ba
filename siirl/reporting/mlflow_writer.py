"""MLflow: parameters, tags, metrics, videos and tables of a run.

MLFLOW_TRACKING_URI names a server or database; without it the run folder gets `mlflow.db` and
`mlflow_artifacts/` (`mlflow ui --backend-store-uri sqlite:///.../mlflow.db`). MLflow has no
histograms: a distribution is logged by its quantiles. Left out: MLflow's own system metrics, model
registry, and fluent interface (its state is global to the process).
"""

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from siirl.errors import ConfigError, SiirlError
from siirl.reporting.metrics import Reduced, finite
from siirl.reporting.quantiles import quantiles
from siirl.reporting.writer_contract import RunDescription, RunWriter, Table, Video

ADDRESS = "MLFLOW_TRACKING_URI"
DATABASE, ARTIFACTS = "mlflow.db", "mlflow_artifacts"
MOST_PARAMETERS, MOST_METRICS = 100, 1000  # of one request (MLflow's validation.py)
LONGEST_PARAMETER = 6000  # characters (MLflow's validation.py)
MOST_LISTED_TABLES = 50  # limit of the tag that MLflow's page reads
Item = TypeVar("Item")


class MlflowWriter(RunWriter):
    """MLflow, if installed.

    Raises:
        ConfigError: It cannot start: no answer from the server, or an unknown address.
    """

    def __init__(self, run: RunDescription) -> None:
        import mlflow  # optional: check_loggers has refused a run without it
        from mlflow.entities import Metric, Param

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs each table that it makes
        self._metric, self._error = Metric, mlflow.exceptions.MlflowException
        own = f"sqlite:///{run.folder.absolute() / DATABASE}"
        address = os.environ.get(ADDRESS) or own
        artifacts = str(run.folder.absolute() / ARTIFACTS) if address == own else None
        try:
            self._client = mlflow.MlflowClient(tracking_uri=address, registry_uri=address)
            experiment = self._client.get_experiment_by_name(run.project)
            number = (
                self._client.create_experiment(run.project, artifact_location=artifacts)
                if experiment is None
                else experiment.experiment_id
            )
            tags = dict.fromkeys(run.tags, "true") | {"siirl.run_folder": str(run.folder)}
            if run.notice:
                tags["mlflow.note.content"] = run.notice
            self._run = self._client.create_run(
                number, run_name=run.experiment, tags=tags
            ).info.run_id
            parameters = [Param(name, value) for name, value in _flat(run.config)]
            for part in _parts(parameters, MOST_PARAMETERS):
                self._client.log_batch(self._run, params=part)
            self._client.log_dict(self._run, dict(run.config), "config.json")
        except self._error as error:
            raise ConfigError(
                f"trainer.logger=mlflow: {error} Set {ADDRESS} to a server that answers, or unset "
                "it to keep the data in the run folder, or use trainer.logger=[console]."
            ) from error
        self._tables: list[str] = []

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Send the step.

        Raises:
            SiirlError: The server did not accept it, even after MLflow's own retries.
        """
        now = round(1000 * time.time())
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            if isinstance(value, list):
                found = quantiles(finite(value))
                numbers |= {f"{name}/{kind}": float(number) for kind, number in found.items()}
            else:
                numbers[name] = float(value)
        sent = [self._metric(_allowed(name), value, now, step) for name, value in numbers.items()]
        with _with_remedy(self._error):
            for part in _parts(sent, MOST_METRICS):
                self._client.log_batch(self._run, metrics=part)

    def show_videos(self, *, step: int, videos: Sequence[Video]) -> None:
        """Send the files to `videos/<kind>/step_<step>`."""
        with _with_remedy(self._error):
            for video in videos:
                place = f"videos/{video.kind}/step_{step:06d}"
                self._client.log_artifact(self._run, str(video.file), place)

    def show_table(self, *, step: int, name: str, table: Table) -> None:
        """Send the table as JSON, which MLflow's page shows as a table."""
        file = f"{name}.json" if name.startswith("final/") else f"{name}/step_{step:06d}.json"
        content = {"columns": list(table.columns), "data": [list(row) for row in table.rows]}
        self._tables = [*self._tables, file][-MOST_LISTED_TABLES:]
        listed = [{"path": path, "type": "table"} for path in self._tables]
        with _with_remedy(self._error):
            self._client.log_dict(self._run, content, file)
            self._client.set_tag(self._run, "mlflow.loggedArtifacts", json.dumps(listed))

    def close(self) -> None:
        """Mark the run as finished."""
        with _with_remedy(self._error):
            self._client.set_terminated(self._run)


def _flat(tree: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and values as text; long values are cut, but config.json has them in full."""
    for name, value in tree.items():
        key = f"{place}.{name}" if place else str(name)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, key)
        else:
            yield _allowed(key), str(value)[:LONGEST_PARAMETER]


def _allowed(name: str) -> str:
    """A name with the characters that MLflow accepts."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def _parts(items: Sequence[Item], most: int) -> Iterator[list[Item]]:
    for start in range(0, len(items), most):
        yield list(items[start : start + most])


@contextlib.contextmanager
def _with_remedy(error_type: type[Exception]) -> Iterator[None]:
    """Turn MLflow's error into one with the remedy."""
    try:
        yield
    except error_type as error:
        raise SiirlError(
            f"trainer.logger=mlflow: {error} Resume the run with a server that answers "
            f"({ADDRESS}), or without mlflow in trainer.logger."
        ) from error
