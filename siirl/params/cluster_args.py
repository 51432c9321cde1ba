"""Keys of the cluster."""

from dataclasses import dataclass

from siirl.params.fields import option


@dataclass
class ClusterArguments:
    """Processes of the run; `cluster=local` is for debugging."""

    mode: str = option(
        "ray",
        "`ray`: workers and servers are Ray actors; `local`: all in one process.",
        choices=("ray", "local"),
    )
    address: str | None = option(
        None,
        "HOST:PORT of a running Ray cluster; `auto`: the cluster last started by `ray start`; "
        "null: a private one for this run.",
        why="needs no set-up",
    )
