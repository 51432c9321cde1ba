"""Two runs at once, and Ray clusters: a running one, and addresses without one."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from real_run import RAY, RAY_AGENTS, descendants_of, living_processes, start_ray

from siirl.errors import ConfigError
from siirl.execution.scheduler.placement import ClusterLayout, ClusterMachine, require_machines
from siirl.execution.scheduler.ray_session import credentials
from siirl.preflight.ray_address import address_problems, resolve_address

REFUSED = 2
FOUR = "actor_rollout_ref.rollout.n=4"  # which two ranks can share
SHORT = ("trainer.total_steps=2",)
OF_A_RUN = ("ray::_Rank", "ray::EnvServerActor")
GONE_WITHIN_S = 600.0  # only a hang takes longer


@pytest.fixture
def nobody() -> str:
    """An address of this machine without a listener."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def servers_of(ray_home: Path) -> set[int]:
    """The two processes that make a cluster."""
    return {
        pid
        for pid, title in living_processes()
        if str(ray_home) in title
        and any(part in title for part in ("gcs/gcs_server ", "raylet/raylet "))
    }


@pytest.mark.parametrize("port", [" 1", "", "0", "65536", "x"])
def test_an_address_without_host_and_port_is_refused(port: str) -> None:
    (problem,) = address_problems(f"head-node:{port}")
    assert str(problem).startswith(
        f"cluster.address=head-node:{port} is not the address of a Ray cluster: write HOST:PORT"
    )


@pytest.mark.parametrize("address", ["ray://head-node:10001", "head-node", ":6379"])
def test_other_forms_of_addresses_are_refused(address: str) -> None:
    with pytest.raises(
        ConfigError, match="write HOST:PORT as `ray start --head` prints it, or auto"
    ):
        resolve_address(address)


def test_auto_is_what_ray_start_wrote_down_and_not_some_run_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"cluster\.address=auto: no Ray cluster was started on this machine"
    ):
        resolve_address("auto")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert resolve_address("auto") == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert resolve_address("auto") == "10.0.0.2:6379"


def test_an_address_with_a_listener_passes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert list(address_problems(f"127.0.0.1:{listener.getsockname()[1]}")) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_address_without_a_server_is_reported_with_the_remedy(nobody: str, host: str) -> None:
    address = f"{host}:{nobody.rpartition(':')[2]}"
    (problem,) = address_problems(address)
    assert str(problem).startswith(f"cluster.address={address}: no answer (")
    assert "Start a cluster there (ray start --head), or leave cluster.address out" in str(problem)


def test_a_run_for_a_cluster_that_is_not_there_leaves_nothing(nobody: str, start_run) -> None:
    run = start_run(*SHORT, f"cluster.address={nobody}")
    assert run.wait() == REFUSED, run.text
    assert (
        run.text.rstrip()
        .splitlines()[-1]
        .startswith(f"siirl: cluster.address={nobody}: no answer (Connection refused)")
    )
    assert "Traceback" not in run.text
    assert not run.outputs.exists()


@pytest.mark.slow  # Ray tries for twenty seconds
def test_another_peer_at_the_address_is_refused_and_leaves_nothing(start_run) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        run = start_run(*SHORT, f"cluster.address=127.0.0.1:{listener.getsockname()[1]}")
        assert run.wait() == REFUSED, run.text
    assert "Failed to connect to Ray cluster" in run.text and "Traceback" not in run.text
    run.seconds_until_gone()
    assert not run.outputs.exists()


def test_a_local_run_trains_in_one_process_where_a_debugger_sees_all_of_it(start_run) -> None:
    """Waits for the first checkpoint: before, a library of a simulator may ask a child process
    for a version.
    """
    run = start_run("trainer.total_steps=20", "cluster=local")
    run.wait_until(lambda: bool(run.checkpoints()))
    seen: dict[int, str] = {}
    while run.process.poll() is None:
        seen |= run.processes()
        time.sleep(0.02)
    assert run.wait() == 0, run.text
    others = [title for pid, title in seen.items() if pid != run.process.pid]
    assert all("exit_report" in title for title in others), others  # waits for the run to hang


@pytest.mark.slow  # two runs with a Ray each
def test_two_runs_at_once_work(start_run) -> None:
    runs = [start_run(*SHORT), start_run(*SHORT)]
    assert [run.wait() for run in runs] == [0, 0], "\n".join(run.text for run in runs)
    folders = runs[0].folders  # both write below the same output folder
    assert len(folders) == 2
    assert [len((folder / "metrics.jsonl").read_text().splitlines()) for folder in folders] == [
        2,
        2,
    ]
    for run in runs:
        run.seconds_until_gone()


FIRST_RAYLET_SLEEPS = """
import subprocess

class Popen(subprocess.Popen):
    first = True

    def __init__(self, command, *args, **kwargs):
        if Popen.first and str(command[0]).endswith("raylet/raylet"):
            Popen.first, command = False, ["sleep", "3600"]
        super().__init__(command, *args, **kwargs)

subprocess.Popen = Popen
"""


@pytest.mark.slow  # Ray waits for 30 seconds
def test_a_ray_that_does_not_come_up_is_ended_and_started_again(start_run, tmp_path: Path) -> None:
    """Simulates a machine that is too busy: a process that never answers replaces the first
    raylet.
    """
    (tmp_path / "sitecustomize.py").write_text(FIRST_RAYLET_SLEEPS)
    run = start_run(*SHORT, environment={"PYTHONPATH": str(tmp_path)})
    assert run.wait() == 0, run.text
    assert "Ray did not come up in time; starting it again." in run.text
    run.seconds_until_gone(but=RAY_AGENTS)


@pytest.mark.slow  # a cluster and two runs
@pytest.mark.parametrize("how", ["its address", "auto"])
def test_a_cluster_that_is_there_is_used_and_stays(
    cluster: str, ray_home: Path, start_run, how: str
) -> None:
    before = servers_of(ray_home)
    assert len(before) == 2, before
    address = cluster if how == "its address" else "auto"
    run = start_run(*SHORT, f"cluster.address={address}", environment={"RAY_TMPDIR": str(ray_home)})
    own_titles: set[str] = set()
    while run.process.poll() is None:
        own_titles |= set(run.processes().values())
        time.sleep(0.1)
    assert run.wait() == 0, run.text
    assert not any("gcs_server" in title for title in own_titles)  # it started no Ray of its own
    assert before == servers_of(ray_home)
    with_token = os.environ | credentials()
    subprocess.run(
        [RAY, "status", f"--address={cluster}"], env=with_token, check=True, capture_output=True
    )
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := [
        title
        for pid, title in living_processes()
        if title.startswith(OF_A_RUN) and pid in descendants_of(before)
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.fixture
def second_machine(cluster: str, ray_home: Path) -> str:
    """Address of a second machine, as Ray sees it: a raylet at another address of the loopback."""
    address = "127.0.0.2"
    words = [
        "start",
        f"--address={cluster}",
        f"--node-ip-address={address}",
        "--num-cpus=2",
        "--num-gpus=2",
        "--disable-usage-stats",
    ]
    environment = os.environ | {"RAY_TMPDIR": str(ray_home)} | credentials()
    start_ray(words, environment | {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"})
    return address


def test_ranks_share_machines_in_order_and_the_first_is_beside_the_command(
    cluster: str, second_machine: str, ray_home: Path, tmp_path: Path
) -> None:
    """With and without GPUs, in the command's folder; a message states a wait for GPUs. Each rank
    sees only its own GPU, whatever the machine's Ray was told, and the command's setting of NCCL.
    """
    command = [sys.executable, str(Path(__file__).with_name("placed_ranks.py")), cluster]
    environment = os.environ | {"RAY_TMPDIR": str(ray_home), "NCCL_DEBUG": "WARN"} | credentials()
    process = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    saw = json.loads(process.stdout.splitlines()[-1])
    machine_of_each = [saw["here"], saw["here"], second_machine, second_machine]
    for ranks in ("on_cpus", "on_gpus"):
        assert [machine for machine, *_ in saw[ranks]] == machine_of_each
        assert [setting for *_, setting in saw[ranks]] == ["WARN"] * 4
    gpus = [gpu for _, gpu, _ in saw["on_gpus"]]
    assert [sorted(gpus[:2]), sorted(gpus[2:])] == [["0", "1"], ["0", "1"]]
    assert [len(gpus.split(",")) for _, gpus, _ in saw["beside_an_engine"]] == [1, 2]
    assert not saw["placed_meanwhile"]
    assert "Waiting for 2 machine(s) with 2 free GPUs each; others use them now" in process.stderr
    assert re.search(
        r"asks for 3 machine\(s\), but the Ray cluster has 2 \(its GPUs: .* with 2, .* with 2\)",
        saw["refused"],
    )


@pytest.mark.slow  # a cluster and a run
def test_a_cluster_with_too_few_machines_is_refused_and_nothing_is_left(
    cluster: str, ray_home: Path, start_run
) -> None:
    run = start_run(
        *SHORT,
        f"cluster.address={cluster}",
        "trainer.nnodes=2",
        FOUR,
        environment={"RAY_TMPDIR": str(ray_home)},
    )
    assert run.wait() == REFUSED, run.text
    assert (
        "trainer.nnodes=2 with trainer.n_gpus_per_node=1 asks for 2 machine(s), but the Ray "
        "cluster has 1" in run.text
    )
    assert not run.outputs.exists()


@pytest.mark.parametrize(
    ("layout", "refused"),
    [
        (ClusterLayout(nodes=2, ranks_per_node=4, gpus=(1,) * 8), False),
        (ClusterLayout(nodes=1, ranks_per_node=8, gpus=(1,) * 8), False),
        (ClusterLayout(nodes=3, ranks_per_node=100), False),  # ranks on CPUs
        (
            ClusterLayout(nodes=2, ranks_per_node=5, gpus=(1,) * 10),
            True,
        ),  # although there are twelve GPUs
        (ClusterLayout(nodes=1, ranks_per_node=9, gpus=(1,) * 9), True),
        (ClusterLayout(nodes=4, ranks_per_node=1), True),
        (
            ClusterLayout(nodes=1, ranks_per_node=2, gpus=(4, 4)),
            False,
        ),  # tensor-parallel engines
        (ClusterLayout(nodes=1, ranks_per_node=3, gpus=(4, 4, 4)), True),
        # ranks that train beside engines of two GPUs, on one machine and on two
        (ClusterLayout(nodes=1, ranks_per_node=6, gpus=(1, 1, 1, 1, 2, 2)), False),
        (ClusterLayout(nodes=2, ranks_per_node=3, gpus=(1, 1, 1, 1, 2, 2)), True),
    ],
)
def test_machines_are_asked_for_that_the_cluster_has(layout: ClusterLayout, refused: bool) -> None:
    there = [
        ClusterMachine("a", "10.0.0.1", 0),
        ClusterMachine("b", "10.0.0.2", 4),
        ClusterMachine("c", "10.0.0.3", 8),
    ]
    with (
        pytest.raises(ConfigError, match=r"its GPUs: 10.0.0.1 with 0, 10.0.0.2 with 4")
        if refused
        else nullcontext()
    ):
        require_machines(layout, there)
