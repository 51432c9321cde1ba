"""Samples that tests put into a DataCoordinator, and its clock."""

from siirl.data_coordinator.queues import QueueKey
from siirl.data_coordinator.sample_info import SampleInfo

KEY = QueueKey("actor_train", 7)


class Clock:
    """A clock that a test advances."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def infos(*uids, tokens=1, **values):
    return [SampleInfo(sum_tokens=tokens, uid=uid, dict_info=dict(values)) for uid in uids]


def put(coordinator, *uids, key=KEY, source=0, sources=None, tokens=1, **values):
    return coordinator.put_batch(
        key,
        infos(*uids, tokens=tokens, **values),
        [f"ref-{uid}" for uid in uids],
        source=source,
        sources=sources,
    )


def uids(lease):
    return [info.uid for info in lease.infos]


# Divided among ranks


def two_sources(coordinator, *, key=KEY, prefix=""):
    """Rank 0 puts samples of 8, 5 and 1 tokens, rank 1 of 7, 6 and 3."""
    for source, lengths in enumerate([(8, 5, 1), (7, 6, 3)]):
        names = [f"{prefix}{length}" for length in lengths]
        samples = [
            SampleInfo(sum_tokens=length, uid=name)
            for length, name in zip(lengths, names, strict=True)
        ]
        coordinator.put_batch(key, samples, names, source=source, sources=2)
