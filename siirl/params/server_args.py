"""Keys of rollout=server: inference servers that a run reaches over HTTP."""

from dataclasses import dataclass

from siirl.params.fields import option

NO_SERVER = "robots act through the training module itself"


@dataclass
class ServerArguments:
    """Inference servers, one for each rank."""

    urls: tuple[str, ...] = option(
        (),
        "Addresses http://HOST:PORT of the servers, in the order of the ranks.",
        why="a server belongs to one rank, which sends it the weights",
        unique=True,
        text_only=NO_SERVER,
    )
    token_file: str | None = option(
        None,
        "File with the servers' key (vLLM's --api-key); null: they need none.",
        text_only=NO_SERVER,
        path=True,
    )
    deadline_s: float = option(
        600.0,
        "Seconds for one answer, including the time that it waits at the server.",
        why="8192 tokens at 15 per second",
        above=0,
        text_only=NO_SERVER,
    )
    weights: str = option(
        "folder",
        "How new weights reach the servers. `folder`: files that both sides see; `collective`: a "
        "broadcast over the network, for which the servers connect to the run's ranks.",
        why="the fastest on one machine, where the folder is memory",
        choices=("folder", "collective"),
        text_only=NO_SERVER,
    )
    weights_folder: str | None = option(
        None,
        "Folder that the run and its servers see under the same path; it carries new weights in "
        "buckets. null: a private folder in this machine's memory (/dev/shm).",
        why="a server on this machine reads it without a disk",
        text_only=NO_SERVER,
        path=True,
    )
