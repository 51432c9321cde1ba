"""Simulators draw on the GPUs of their rank, in turn."""

import os

import pytest

from envs.render_devices import EGL_DEVICE, choose_render_device, gpu_uuids, rank_gpus

UUIDS = ("GPU-aa", "GPU-bb", "GPU-cc", "GPU-dd")
HERE = os.uname().nodename


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch):
    monkeypatch.setenv(EGL_DEVICE, "")
    monkeypatch.delenv(EGL_DEVICE)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("2", (2,)),
        ("3,1", (3, 1)),
        ("GPU-cc", (2,)),
        ("MIG-1234", ()),
        ("9", ()),
    ],
)
def test_a_rank_draws_on_the_gpus_that_it_sees(visible, expected):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert rank_gpus(environment, UUIDS) == expected


@pytest.mark.parametrize(("number", "device"), [(0, "2"), (1, "3"), (2, "2")])
def test_servers_of_a_rank_take_turns_on_its_gpus(number, device):
    choose_render_device(number=number, gpus=(2, 3), machine=HERE, uuids=UUIDS)
    assert os.environ[EGL_DEVICE] == device


@pytest.mark.parametrize(("number", "device"), [(0, "2"), (1, "3"), (2, "0"), (5, "3")])
def test_a_server_on_another_machine_takes_turns_on_all_of_its_gpus(number, device):
    choose_render_device(number=number, gpus=(2,), machine="elsewhere", uuids=UUIDS)
    assert os.environ[EGL_DEVICE] == device


def test_the_ranks_of_another_machine_draw_on_different_gpus(monkeypatch):
    devices = []
    for gpu in range(len(UUIDS)):
        choose_render_device(number=0, gpus=(gpu,), machine="elsewhere", uuids=UUIDS)
        devices.append(os.environ[EGL_DEVICE])
        monkeypatch.delenv(EGL_DEVICE)
    assert devices == ["0", "1", "2", "3"]


def test_a_rank_without_gpus_has_servers_that_draw_on_those_of_their_machine():
    choose_render_device(number=1, gpus=(), machine="elsewhere", uuids=UUIDS)
    assert os.environ[EGL_DEVICE] == "1"


def test_the_users_device_stays(monkeypatch):
    monkeypatch.setenv(EGL_DEVICE, "7")
    choose_render_device(number=0, gpus=(2,), machine=HERE, uuids=UUIDS)
    assert os.environ[EGL_DEVICE] == "7"


def test_without_gpus_nothing_is_chosen():
    choose_render_device(number=0, gpus=(), machine=HERE, uuids=())
    assert EGL_DEVICE not in os.environ


def test_gpus_are_read_in_the_order_of_their_minor_numbers(tmp_path):
    for folder, minor, uuid in (("0000:02:00.0", 1, "GPU-bb"), ("0000:81:00.0", 0, "GPU-aa")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "information").write_text(
            f"Model: \t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        )
    assert gpu_uuids(tmp_path) == ("GPU-aa", "GPU-bb")
