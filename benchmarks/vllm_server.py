"""vLLM's real server on a CPU, started as docs/inference_server.md says."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}


def words(model: str, *, longest: int) -> list[str]:
    """Arguments of vLLM's server for a model on a CPU.

    Args:
        model: Its folder.
        longest: Tokens of the longest text.
    """
    return [
        *("--host", "127.0.0.1", "--model", model, "--dtype", "float32"),
        *("--max-model-len", str(longest), "--generation-config", "vllm"),
        *("--hf-overrides", '{"head_dtype": "float32"}', "--enforce-eager"),
        *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"),
        *("--kv-cache-memory-bytes", "500000000", "--max-num-seqs", "256"),
        *("--disable-uvicorn-access-log", "--worker-extension-cls"),
        "siirl.engine.rollout.server.server_worker.ServerWorker",
    ]


def free_port() -> int:
    """A TCP port of the loopback that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def vllm_server(model: str, *, port: int, log: Path, longest: int = 128) -> Iterator[str]:
    """The address of vLLM's server, once it answers.

    Args:
        model: The model's folder.
        port: Of the loopback.
        log: Gets what the server says.
        longest: Tokens of the longest text.

    Raises:
        RuntimeError: The server ended; the message is its log.
    """
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, *words(model, longest=longest)],
            env={**os.environ, **ENVIRONMENT},
            stdout=stream,
            stderr=stream,
        )
    try:
        while not _answers(url):
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health"):
            return True
    except urllib.error.URLError:
        return False
