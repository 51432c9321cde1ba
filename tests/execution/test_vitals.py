"""A server that listens is alive; one that does not is reported by name after its patience."""

import resource
import socket

import pytest

from siirl.errors import RunFailed
from siirl.execution.scheduler.ray_errors import stated_cause
from siirl.execution.scheduler.vitals import Server, Vitals


def server(listener: socket.socket, *, patience_s: float) -> Server:
    return Server("Ray's GCS", "127.0.0.1", listener.getsockname()[1], patience_s)


def test_a_server_that_listens_is_not_missed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        vitals = Vitals([server(listener, patience_s=0.0)])
        vitals.check()
        vitals.explain()
    assert not vitals.lost


def test_a_server_that_is_gone_is_missed_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        vitals = Vitals([server(listener, patience_s=0.0)])
        port = listener.getsockname()[1]
    with pytest.raises(
        RunFailed, match=rf"Ray's GCS \(127\.0\.0\.1:{port}\) died.*Connection refused"
    ):
        vitals.check()
    assert vitals.lost


def test_a_server_that_is_silent_may_come_back_within_its_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        vitals = Vitals([server(listener, patience_s=1000.0)])
        address = listener.getsockname()
    vitals.check()
    with socket.create_server(address):
        vitals.explain()
    assert not vitals.lost


def test_a_server_that_this_process_cannot_ask_is_not_missed() -> None:
    bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        vitals = Vitals([server(listener, patience_s=0.0)])
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, bounds[1]))
        try:
            vitals.check()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, bounds)
    assert not vitals.lost


def test_an_explanation_waits_until_the_patience_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        vitals = Vitals([server(listener, patience_s=0.5)])
    with pytest.raises(RunFailed):
        vitals.explain()


def test_what_ray_says_over_many_lines_becomes_one_without_its_guesses() -> None:
    said = (
        "The actor died.\n\tpid: 7\nThe actor is dead because its worker process has died. End of "
        "file. "
        "Some common causes include: (1) ..."
    )
    assert stated_cause(ValueError(said)) == (
        "pid 7 was killed (kill -9, or by the kernel because memory ran out: see dmesg), or it "
        "crashed. If memory ran out, end other programs, or lower env.num_servers and "
        "env.envs_per_server"
    )
    lost = "The actor is dead because its node has died.\nNode Id: 4f Ip: 10.0.0.2"
    assert stated_cause(ValueError(lost)) == "its machine left the cluster"
    assert stated_cause(ValueError("GCS\n is away.")) == "GCS is away"


def test_rays_list_of_processes_at_an_end_of_memory_is_left_out():
    said = (
        "2 worker(s) were killed due to the node running low on memory. Memory on the node (IP: "
        "127.0.0.1, ID: 1d5d) was 21.43GB used / 23.54GB limit (0.910310)\nOOM kill reason: Memory "
        "usage 24062033920B exceeded threshold\nTop 10 memory users: PID MEM(GB) COMMAND ..."
    )
    assert stated_cause(ValueError(said)) == (
        "the machine is out of memory (21.43 of 23.54 GB), and Ray ended 2 of the run's processes: "
        "end other programs, or lower env.num_servers and env.envs_per_server"
    )
