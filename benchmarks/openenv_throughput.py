"""Steps per second over OpenEnv's protocol, both ways, beside openenv-core's bare client.

    python -m venv openenv && openenv/bin/pip install openenv-core==0.3.0
    python -m benchmarks.openenv_throughput --openenv openenv/bin/python

- `their server`: `docs/examples/openenv_server.py`, an environment of openenv-core that does
  nothing, stepped by env=openenv and by `GenericEnvClient`.
- `our server`: CartPole behind `siirl serve`, stepped by `GenericEnvClient`, by env=openenv, and
  in this process without a server (`in process`), which is the cost of the environment.

One session at a time. In each round the contenders take turns, and `ratio` is env=openenv over
`GenericEnvClient` of the same round; the median over rounds is reported, with all rounds. Resets
count in the time and not as steps.

Left out: several sessions at once, images, networks between machines.
"""

import argparse
import asyncio
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine
from envs.base import Environment
from envs.gymnasium import GymnasiumEnv
from envs.openenv.openenv_env import OpenEnvEnv

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "openenv_throughput.json"
CARTPOLE = "CartPole-v1"
START_S = 120.0  # only a hang takes longer
BARE_CLIENT = """
import json, sys, time
from openenv.core.generic_client import GenericEnvClient
url, action, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
with GenericEnvClient(base_url=url).sync() as env:
    env.reset(seed=1)
    steps, begin, done = 0, time.perf_counter(), False
    while time.perf_counter() < begin + seconds:
        done = (env.reset(seed=1) if done else env.step(action)).done
        steps += not done
    print(steps / (time.perf_counter() - begin))
"""


def main() -> None:
    """Measure both servers, write the result and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openenv", required=True, help="interpreter that has openenv-core")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each contender in a round")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    flags = parser.parse_args()
    measured = {}
    with served_by_openenv_core(flags.openenv) as url:
        measured["their server"] = [
            {
                "env=openenv": rate_of(OpenEnvEnv(url=url), "x", seconds=flags.seconds),
                "GenericEnvClient": bare_rate(flags, url, {"text": "x"}),
            }
            for _ in range(flags.rounds)
        ]
    with served_by_siirl() as (url, token_file):
        token = Path(token_file).read_text().strip()
        with_token = url.replace("http://", f"http://siirl:{token}@")
        measured["our server"] = [
            {
                "env=openenv": rate_of(
                    OpenEnvEnv(url=url, token_file=token_file), 1, seconds=flags.seconds
                ),
                "GenericEnvClient": bare_rate(flags, with_token, {"action": 1}),
                "in process": rate_of(GymnasiumEnv(id=CARTPOLE), 1, seconds=flags.seconds),
            }
            for _ in range(flags.rounds)
        ]
    result = {
        "command": "python -m benchmarks.openenv_throughput --openenv PYTHON",
        "note": flags.note,
        "machine": describe_machine(),
        "openenv_core": version_of(flags.openenv),
        "steps_per_second": {name: medians(rounds) for name, rounds in measured.items()},
        "rounds": measured,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["steps_per_second"], indent=1))


def rate_of(env: Environment, action: Any, *, seconds: float) -> float:
    """Steps per second of one environment, episode after episode."""

    async def play() -> float:
        await env.reset(seed=1)
        steps, begin, ended = 0, time.perf_counter(), False
        while time.perf_counter() < begin + seconds:
            if ended:
                await env.reset(seed=1)
                ended = False
                continue
            _, _, terminated, truncated, _ = await env.step(action)
            ended = terminated or truncated
            steps += not ended
        rate = steps / (time.perf_counter() - begin)
        await env.close()
        return rate

    return asyncio.run(play())


def bare_rate(flags: argparse.Namespace, url: str, action: dict[str, Any]) -> float:
    """The same of openenv-core's client, in its own interpreter."""
    words = [url, json.dumps(action), str(flags.seconds)]
    done = subprocess.run(
        [flags.openenv, "-c", BARE_CLIENT, *words], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Median steps per second of each contender, and the median ratio within a round."""
    found = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    found["ratio"] = statistics.median(
        row["env=openenv"] / row["GenericEnvClient"] for row in rounds
    )
    return {name: round(value, 2) for name, value in found.items()}


def version_of(python: str) -> str:
    """Installed version of openenv-core."""
    code = "from importlib.metadata import version; print(version('openenv-core'))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@contextmanager
def served_by_openenv_core(python: str) -> Iterator[str]:
    """The address of the example server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    example = ROOT / "docs" / "examples" / "openenv_server.py"
    with subprocess.Popen([python, str(example), str(port)]) as server:
        try:
            wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    """Return when something listens at `port`."""
    give_up = time.monotonic() + START_S
    while True:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        if server.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"the server of openenv-core did not start at port {port}")
        time.sleep(0.2)


@contextmanager
def served_by_siirl() -> Iterator[tuple[str, str]]:
    """The address of CartPole behind `siirl serve`, and the file of its token."""
    with tempfile.TemporaryDirectory() as folder:
        token_file = f"{folder}/token"
        words = ["env=gymnasium", f"env.id={CARTPOLE}", "port=0", f"token_file={token_file}"]
        command = [sys.executable, "-m", "siirl.serve", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                line = server.stdout.readline()
                (address,) = re.findall(r"http://127\.0\.0\.1:\d+", line)
                yield address, token_file
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
