"""Shortens Ray's multi-line error messages to one line."""

import re

OUT_OF_MEMORY = re.compile(
    r"(\d+) worker\(s\) were killed due to the node running low on memory\b.*?was "
    r"([\d.]+)GB used / ([\d.]+)GB limit"
)


PROCESS = re.compile(r" pid: (\d+) ")
MORE_MEMORY = "end other programs, or lower env.num_servers and env.envs_per_server"
CAUSES = {
    "its worker process has died": "{process} was killed (kill -9, or by the kernel because memory "
    f"ran out: see dmesg), or it crashed. If memory ran out, {MORE_MEMORY}",
    "its node has died": "its machine left the cluster",
}
"""Ray's generic causes, in terms of the run."""


def stated_cause(error: BaseException) -> str:
    """Ray's stated cause as a clause without a full stop, and without its lists of possible causes
    and processes (those are in the file of `siirl.execution.scheduler.ray_messages`).
    """
    said, _, _ = " ".join(str(error).split()).partition(" Some common causes include")
    if short := OUT_OF_MEMORY.search(said):
        ended, used, limit = short.groups()
        return (
            f"the machine is out of memory ({used} of {limit} GB), and Ray ended {ended} of the "
            f"run's processes: {MORE_MEMORY}"
        )
    stated = said.rpartition("The actor is dead because ")[2]
    for words, cause in CAUSES.items():
        if stated.startswith(words):
            process = PROCESS.search(said)
            return cause.format(process=f"pid {process[1]}" if process else "it")
    return stated.removesuffix(".")
