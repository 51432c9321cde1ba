"""The size of a private Ray's object store."""

from importlib import import_module

import pytest

from siirl.execution.scheduler.ray_session import ClusterSettings, store_memory


@pytest.mark.parametrize(
    ("asked", "shared", "size"),
    [
        (0.0, 64e9, None),
        (2e9, 64e9, 4_000_000_000),  # Ray's default is larger
        (6e9, 64e9, 6_000_000_000),
        (6e9, 4e9, 3_800_000_000),  # a larger one would be on the disk
        (1e6, 64e6, 75 * 1024 * 1024),
    ],
)
def test_the_store_has_the_size_that_was_asked_for_as_far_as_the_shared_memory_goes(
    monkeypatch: pytest.MonkeyPatch, asked: float, shared: float, size: int | None
) -> None:
    utils = import_module("ray._private.utils")
    monkeypatch.setattr(utils, "resolve_object_store_memory", lambda available: 4_000_000_000)
    monkeypatch.setattr(utils, "get_shared_memory_bytes", lambda: int(shared))
    assert store_memory(ClusterSettings(None, {}, store_bytes=asked)) == size


def test_a_running_cluster_keeps_its_stores() -> None:
    assert store_memory(ClusterSettings("10.0.0.1:6379", {}, store_bytes=6e9)) is None
