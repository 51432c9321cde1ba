"""Sandbox on another machine, over HTTP, with SandboxFusion's `run_code` API.

API: https://github.com/bytedance/SandboxFusion. One request per test: `{code, language, stdin,
compile_timeout, run_timeout, memory_limit_MB, files, fetch_files}`; the answer has `status` and a
`run_result` {status, execution_time, return_code, stdout, stderr}. The service is responsible for
isolation; the verdict is still computed here, from the output. If a function is tested, lines
appended to the program call it. Its result is the last line of standard output, after a random mark
that is new for each request.

A request is retried if the service is unreachable, overloaded or reports its own failure. After the
last attempt the episode fails, which never counts as a wrong answer.
"""

import asyncio
import http.client
import json
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from envs.archives import MEBIBYTE
from envs.sandbox.limits import Ending, Execution, Limits, ProgramRun, SandboxFailed

TRIES = 3
FIRST_PAUSE_S = 0.5  # doubles with each retry
TRANSFER_S = 30.0  # for queue and network, in addition to the running time
OVERLOADED = (408, 429, 500, 502, 503, 504)
CALL = """

def _call(names, mark):
    import json, sys
    printed, sys.stdout = sys.stdout, sys.stderr
    function = sys.modules["__main__"]
    for name in names:
        function = function() if isinstance(function, type) else function
        function = getattr(function, name)
    result = json.dumps(function(*json.loads(sys.stdin.read())))
    printed.write("\\n" + mark + result + "\\n")
    printed.flush()

_call({names!r}, {mark!r})
"""


class RemoteSandbox:
    """Runs programs at `url`, the address of the service without `/run_code`.

    Raises:
        ValueError: `url` is not an HTTP address.
    """

    def __init__(self, url: str, limits: Limits) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(
                "env.kwargs.url must be the address of a SandboxFusion service, "
                f"such as http://sandbox:8080, got {url!r}."
            )
        self._address, self._limits = f"{url.rstrip('/')}/run_code", limits

    async def run(self, job: ProgramRun) -> AsyncGenerator[Execution, None]:
        """See `Sandbox.run`; one request per test."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._limits.total_s
        for given in job.inputs:
            mark = secrets.token_hex(16)
            code = (
                job.program
                if job.function is None
                else job.program + CALL.format(names=job.function.split("."), mark=mark)
            )
            yield self._execution(
                await self._ask(code, given), mark=None if job.function is None else mark
            )
            if loop.time() >= until:
                return

    def close(self) -> None:
        """See `Sandbox.close`; there is nothing to release."""

    async def _ask(self, code: str, given: bytes) -> Mapping[str, Any]:
        request = {
            "code": code,
            "language": "python",
            "stdin": given.decode("utf-8", errors="replace"),
            "compile_timeout": self._limits.wall_s,
            "run_timeout": self._limits.wall_s,
            "memory_limit_MB": self._limits.memory_bytes // MEBIBYTE,
            "files": {},
            "fetch_files": [],
        }
        body, problem = json.dumps(request).encode(), ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                answer = await asyncio.to_thread(self._post, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(error) or type(error).__name__
                if isinstance(error, urllib.error.HTTPError):
                    error.close()  # the connection
                    if error.code not in OVERLOADED:
                        break
                continue
            if answer.get("status") in ("Success", "Failed"):
                return answer
            problem = f"status {answer.get('status')!r}: {str(answer.get('message'))[:200]}"
        raise SandboxFailed(
            f"The sandbox service at {self._address} did not run the program: {problem}."
        )

    def _post(self, body: bytes) -> Mapping[str, Any]:
        request = urllib.request.Request(self._address, body, {"Content-Type": "application/json"})
        most = 8 * self._limits.output_bytes + MEBIBYTE  # a byte takes up to six characters in JSON
        with urllib.request.urlopen(request, timeout=self._limits.wall_s + TRANSFER_S) as response:
            content = response.read(most + 1)
        if len(content) > most:
            return {
                "status": "Failed",
                "run_result": {
                    "status": "Finished",
                    "stdout": "x" * (self._limits.output_bytes + 1),
                },
            }
        answer = json.loads(content)
        if not isinstance(answer, dict):
            raise ValueError(f"its answer is not a JSON object: {str(answer)[:80]!r}")
        return answer

    def _execution(self, answer: Mapping[str, Any], *, mark: str | None) -> Execution:
        result = answer.get("run_result")
        if result is None:  # compiled languages: the program does not compile
            return Execution(Ending.KILLED)
        try:
            status = result["status"]
            seconds = float(result.get("execution_time") or 0.0)
            exit_status = int(result.get("return_code") or 0)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SandboxFailed(
                f"The sandbox service at {self._address} answered with a run_result of another "
                f"form: {error!r}."
            ) from error
        output, errors = (
            str(result.get(name) or "").encode("utf-8", errors="replace")
            for name in ("stdout", "stderr")
        )
        if status == "TimeLimitExceeded":
            return Execution(Ending.WALL_TIME, errors=errors[-2000:], cpu_s=seconds)
        if len(output) > self._limits.output_bytes:
            return Execution(Ending.OUTPUT, cpu_s=seconds)
        if status != "Finished":
            return Execution(Ending.KILLED, errors=errors[-2000:], cpu_s=seconds)
        if mark is not None:
            _, found, output = output.rpartition(mark.encode())
            output = output if found else b""
        return Execution(Ending.FINISHED, exit_status, output, errors[-2000:], seconds)
