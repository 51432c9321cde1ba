"""Signals to a run with vLLM in a process of its own, which the run outlives or takes along."""

import importlib.util
import os
import re
import signal
import tempfile
import time
from pathlib import Path

import pytest
from terminal import Terminal

pytestmark = [
    pytest.mark.slow,  # vLLM starts in half a minute
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"
    ),
]

WITHIN_S = 900.0  # only a hang takes longer
JOB = (
    *("siirl.train", "pipeline=grpo", "env=math", "model=tiny_lm", "rollout=vllm"),
    *("actor_rollout_ref.rollout.mode=async", "actor_rollout_ref.rollout.kv_cache_gib=0.05"),
    *("cluster=local", "trainer.val_episodes=0", "trainer.val_before_train=false"),
    *("trainer.total_steps=100000", "trainer.max_minutes=null"),
)


def wait_for_the_end(run: Terminal) -> None:
    deadline = time.monotonic() + WITHIN_S
    while run.processes():
        assert time.monotonic() < deadline, (run.processes(), run.text)
        time.sleep(0.1)


def queues(run: Terminal) -> set[Path]:
    """Files in /dev/shm of the run's processes."""
    found = set()
    for pid in run.processes():
        maps = Path(f"/proc/{pid}/maps").read_text()
        found |= {Path(each) for each in re.findall(r"/dev/shm/psm_\w+", maps)}
    return found


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch):
    """The run's folder of temporary files, with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def starting(tmp_path: Path, temporary: Path):
    """A run that has just started."""
    started = Terminal(*JOB, folder=tmp_path)
    yield started
    started.kill_all()


@pytest.fixture
def run(starting: Terminal) -> Terminal:
    """A run in its second step."""
    starting.wait_for(" 1/100000 ", timeout_s=WITHIN_S)
    return starting


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_stops_the_run_which_saves_its_weights(
    run: Terminal, temporary: Path, number: signal.Signals
) -> None:
    """As of a terminal's Ctrl-C, `timeout` or `scancel`, and a closed terminal."""
    files = queues(run)
    assert files and [*temporary.glob("siirl-*")]
    os.killpg(run.process.pid, number)
    assert run.process.wait(timeout=WITHIN_S) == 128 + number, run.text
    wait_for_the_end(run)
    assert "siirl: interrupted\nThe last checkpoint is" in run.text
    assert not [*filter(Path.exists, files), *temporary.glob("siirl-*")]


def test_a_signal_while_vllm_loads_leaves_no_shared_memory(starting: Terminal) -> None:
    while not (files := queues(starting)):
        assert starting.process.poll() is None, starting.text
        time.sleep(0.05)
    os.killpg(starting.process.pid, signal.SIGINT)
    assert starting.process.wait(timeout=WITHIN_S) == 130, starting.text
    wait_for_the_end(starting)
    assert not [*filter(Path.exists, files)]


def test_vllm_ends_with_a_run_that_was_killed(run: Terminal) -> None:
    run.process.kill()
    wait_for_the_end(run)
