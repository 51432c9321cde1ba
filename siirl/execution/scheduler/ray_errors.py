"""Shortens Ray's multi-line error messages to one line."""

import re

OUT_OF_MEMORY = re.compile(
    r"(\d+) worker\(s\) were killed due to the node running low on memory\b.*?was "
    r"([\d.]+)GB used / ([\d.]+)GB limit"
)


def stated_cause(error: BaseException) -> str:
    """Ray's stated cause, without its lists of possible causes and processes."""
    said, _, _ = " ".join(str(error).split()).partition(" Some common causes include")
    if short := OUT_OF_MEMORY.search(said):
        ended, used, limit = short.groups()
        return (
            f"the machine is out of memory ({used} of {limit} GB), and Ray ended {ended} of the "
            "run's processes. End other programs, or lower env.num_servers and env.envs_per_server."
        )
    return said.rpartition("The actor is dead because ")[2]
