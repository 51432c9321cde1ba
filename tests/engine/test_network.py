"""The network of the ranks, on this machine's own interfaces."""

import os
import socket
from urllib.parse import urlsplit

import psutil
import pytest

from siirl.engine.training.collectives import join, leave
from siirl.engine.training.network import (
    GLOO_INTERFACE,
    NCCL_INTERFACE,
    NCCL_STATE_SERVER,
    interface_of,
    listen_towards,
    on_loopback,
    own_address_towards,
)
from tests.engine.knocking import takes_connections
from tests.engine.ranks_at_work import work_on_ranks

# Meeting points of ranks on several machines: this machine's own addresses.
ADDRESSES = {
    name: address.address
    for name, addresses in psutil.net_if_addrs().items()
    for address in addresses
    if address.family == socket.AF_INET and psutil.net_if_stats()[name].isup
}


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsets the interface variables, and restores them after the test."""
    for variable in (GLOO_INTERFACE, NCCL_INTERFACE, NCCL_STATE_SERVER):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


def free_port(address: str) -> int:
    with socket.socket() as listener:
        listener.bind((address, 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("interface", ADDRESSES)
def test_ranks_listen_on_the_network_of_the_meeting_point(interface):
    address = ADDRESSES[interface]
    assert own_address_towards(address, 29500) == address
    listen_towards(f"tcp://{address}:29500")
    assert os.environ[GLOO_INTERFACE] == interface


def test_an_interface_that_the_user_sets_stays(monkeypatch):
    monkeypatch.setenv(GLOO_INTERFACE, "mine")
    listen_towards("tcp://127.0.0.1:29500")
    assert os.environ[GLOO_INTERFACE] == "mine"


def test_ranks_that_meet_in_a_file_listen_on_the_loopback():
    listen_towards("file:///tmp/rendezvous")
    assert (os.environ[GLOO_INTERFACE], os.environ[NCCL_INTERFACE]) == ("lo", "lo")


def test_an_engine_on_one_machine_uses_the_loopback(monkeypatch):
    monkeypatch.setenv(GLOO_INTERFACE, "mine")
    with on_loopback():
        assert os.environ[GLOO_INTERFACE] == "lo"
    assert os.environ[GLOO_INTERFACE] == "mine"


def test_an_address_of_another_machine_has_no_interface_here():
    assert interface_of("203.0.113.7") is None  # RFC 5737: reserved


def meets(rank, place):
    ranks = join(rank=rank, world_size=2, init_method=place)
    opened = [
        each.laddr
        for each in psutil.Process().net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in opened} == {urlsplit(place).hostname}
    assert len(opened) == (2 if rank == 0 else 1)  # gloo's, and the store's
    # both ranks are connected
    assert not takes_connections((urlsplit(place).hostname, urlsplit(place).port))
    assert (
        ranks.gather_objects(os.environ[GLOO_INTERFACE])
        == [next(name for name in ADDRESSES if ADDRESSES[name] in place)] * 2
    )
    leave(ranks)


@pytest.mark.parametrize("interface", ADDRESSES)
def test_ranks_meet_and_communicate_over_that_network(interface):
    address = ADDRESSES[interface]
    processes = work_on_ranks(meets, (f"tcp://{address}:{free_port(address)}",), ranks=2)
    assert [process.exitcode for process in processes] == [0, 0]
