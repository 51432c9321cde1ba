"""Where the processes run."""

from dataclasses import dataclass

from siirl.params.fields import option


@dataclass
class ClusterArguments:
    """Where the processes run; `cluster=local` is written for a debugger."""

    mode: str = option("ray", "`ray`: workers and servers are Ray actors; `local`: all in one process.", choices=("ray", "local"))
    address: str | None = option(None, "Address of a running Ray cluster; null: one on this machine.", why="needs no set-up")
