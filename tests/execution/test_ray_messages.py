"""Ray's messages go to a file, which a failure names."""

from pathlib import Path

import pytest
from ray._private import worker as rays_worker
from ray.exceptions import RayActorError

from siirl.errors import RunFailed
from siirl.execution.scheduler.ray_messages import kept


def raylet_says(text: str) -> None:
    """As Ray's thread does that listens to its raylets."""
    data = {"lines": [text], "pid": "raylet", "is_err": False}
    rays_worker.print_to_stdstream(data, ignore_prefix=False)


def test_a_paragraph_of_rays_and_the_trace_are_in_the_file_that_the_failure_names(tmp_path, capsys):
    file = tmp_path / "ray.txt"
    with pytest.raises(RunFailed) as failed, kept(file):
        raylet_says("A worker died or was killed.")
        raise RunFailed("The process of rank 0 died.") from RayActorError()
    assert capsys.readouterr() == ("", "")
    assert failed.value.__notes__ == [
        f"Ray's messages and the traces of its processes are in {file}"
    ]
    assert "A worker died or was killed." in file.read_text()
    assert "Traceback" in file.read_text()


def test_a_refusal_without_a_message_of_rays_names_no_file(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as failed, kept(tmp_path / "ray.txt"):
        raise RunFailed("The disk is full.")
    assert not hasattr(failed.value, "__notes__")
    assert not list(tmp_path.iterdir())


def test_without_a_file_messages_go_to_stderr(capsys) -> None:
    with kept(None):
        raylet_says("A worker died.")
    assert capsys.readouterr() == ("", "Ray: A worker died.\n")


def test_after_the_session_ray_prints_again() -> None:
    before = rays_worker.print_to_stdstream
    with kept(None):
        assert rays_worker.print_to_stdstream is not before
    assert rays_worker.print_to_stdstream is before
