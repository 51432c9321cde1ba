"""Simulators draw on the GPUs of their rank, in turn."""

import ctypes
import os
import sys

import pytest

from envs import render_devices
from envs.render_devices import (
    CUDA_DEVICE,
    EGL_DEVICE,
    FUNCTIONS,
    choose_render_device,
    cuda_numbers,
    egl_devices,
    in_cuda_order,
    own_egl_devices,
)

HERE = os.uname().nodename
ALL = (2, 1, 0, 3)
"""EGL's numbers of the GPUs of a machine with four, in CUDA's order."""


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch):
    monkeypatch.setenv(EGL_DEVICE, "")
    monkeypatch.delenv(EGL_DEVICE)


class Egl:
    """A library of EGL with devices of these numbers of CUDA, called as C calls it."""

    def __init__(self, *numbers):
        self.numbers = numbers
        self.kept = {
            "eglQueryDevicesEXT": FUNCTIONS["eglQueryDevicesEXT"](self.devices),
            "eglQueryDeviceAttribEXT": FUNCTIONS["eglQueryDeviceAttribEXT"](self.attribute),
        }

    def eglGetProcAddress(self, name):
        return ctypes.cast(self.kept[name.decode()], ctypes.c_void_p).value

    def devices(self, most, devices, count):
        listed = min(len(self.numbers), most)
        for place in range(listed):
            ctypes.cast(devices, ctypes.POINTER(ctypes.c_void_p))[place] = 0x1000 + place
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = listed
        return 1

    def attribute(self, device, name, value):
        number = self.numbers[device - 0x1000]
        if name != CUDA_DEVICE or number is None:
            return 0
        ctypes.cast(value, ctypes.POINTER(ctypes.c_ssize_t))[0] = number
        return 1


@pytest.mark.parametrize(
    ("numbers", "devices"),
    [
        ((2, 1, 0, 3), (2, 1, 0, 3)),
        ((None, None, 0, None), (2,)),  # CUDA_VISIBLE_DEVICES shows one; the last is Mesa's
        ((1, 0, 0), (1, 0)),
        ((None,), ()),
        ((-1,), ()),
        ((), ()),
        (tuple(range(16)), tuple(range(10))),  # MuJoCo knows ten, and refuses the number of another
    ],
)
def test_devices_of_egl_are_taken_in_the_order_of_cuda(numbers, devices):
    assert in_cuda_order(cuda_numbers(Egl(*numbers))) == devices


def test_a_process_asks_the_egl_of_this_machine(caplog):
    """Without an NVIDIA GPU, its devices have no number of CUDA."""
    assert in_cuda_order(render_devices._ask("0")) == egl_devices("0")
    assert not caplog.records


def test_a_process_that_sees_no_gpu_draws_on_none(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert own_egl_devices() == ()


def test_an_egl_that_ends_the_process_that_asks_is_a_warning(tmp_path, monkeypatch, caplog):
    crash = tmp_path / "python"
    crash.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crash.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crash))
    assert render_devices._ask("0") == []
    [record] = caplog.records
    assert "the process that asked ended with -11" in record.getMessage()
    assert EGL_DEVICE in record.getMessage()


@pytest.mark.parametrize(("number", "device"), [(0, "2"), (1, "3"), (2, "2")])
def test_servers_of_a_rank_take_turns_on_its_gpus(number, device):
    choose_render_device(number=number, gpus=(2, 3), machine=HERE, all_here=ALL)
    assert os.environ[EGL_DEVICE] == device


@pytest.mark.parametrize(("number", "device"), [(0, "0"), (1, "3"), (2, "2"), (5, "3")])
def test_a_server_on_another_machine_takes_turns_on_all_of_its_gpus(number, device):
    choose_render_device(number=number, gpus=(2,), machine="elsewhere", all_here=ALL)
    assert os.environ[EGL_DEVICE] == device


def test_the_ranks_of_another_machine_draw_on_different_gpus(monkeypatch):
    devices = []
    for gpu in ALL:
        choose_render_device(number=0, gpus=(gpu,), machine="elsewhere", all_here=ALL)
        devices.append(os.environ[EGL_DEVICE])
        monkeypatch.delenv(EGL_DEVICE)
    assert devices == ["0", "1", "2", "3"]


def test_a_rank_without_gpus_has_servers_that_draw_on_those_of_their_machine():
    choose_render_device(number=1, gpus=(), machine="elsewhere", all_here=ALL)
    assert os.environ[EGL_DEVICE] == "1"


def test_the_users_device_stays(monkeypatch):
    monkeypatch.setenv(EGL_DEVICE, "7")
    choose_render_device(number=0, gpus=(2,), machine=HERE, all_here=ALL)
    assert os.environ[EGL_DEVICE] == "7"


def test_without_gpus_nothing_is_chosen():
    choose_render_device(number=0, gpus=(), machine=HERE, all_here=())
    assert EGL_DEVICE not in os.environ
