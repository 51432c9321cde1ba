"""A sandbox over HTTP, against a real server with SandboxFusion's `run_code` that runs programs in
the sandbox of this machine.
"""

import contextlib
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from trials import RIGHT, SMALL, executions, problem, verdict

from envs.sandbox import remote
from envs.sandbox.limits import Ending, SandboxFailed
from envs.sandbox.remote import RemoteSandbox

STATUSES = {
    Ending.FINISHED: "Finished",
    Ending.WALL_TIME: "TimeLimitExceeded",
    Ending.CPU_TIME: "TimeLimitExceeded",
}


class Service(BaseHTTPRequestHandler):
    """POST /run_code."""

    sandbox = None
    requests: list = []  # noqa: RUF012
    faults: list = []  # noqa: RUF012  (answers that come before the service works)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, request))
        if self.faults:
            return self.answer(*self.faults.pop(0))
        (execution,) = executions(self.sandbox, request["code"], (request["stdin"].encode(),))
        finished = execution.ending is Ending.FINISHED
        result = {
            "status": STATUSES.get(execution.ending, "Error"),
            "execution_time": execution.cpu_s,
            "return_code": execution.exit_status if finished else None,
            "stdout": execution.output.decode(errors="replace"),
            "stderr": execution.errors.decode(errors="replace"),
        }
        success = finished and execution.exit_status == 0
        answer = {
            "status": "Success" if success else "Failed",
            "message": "",
            "compile_result": None,
            "run_result": result,
        }
        self.answer(200, json.dumps(answer | {"executor_pod_name": None, "files": {}}).encode())

    def answer(self, code, content):
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)

    def log_message(self, *arguments):
        """Log nothing."""


@pytest.fixture
def service(small, monkeypatch):
    """A running service; its address."""
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)
    Service.sandbox, Service.requests, Service.faults = small, [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_request_has_the_form_of_run_code(service):
    (execution,) = executions(
        RemoteSandbox(service + "/", SMALL), "print(input() + '!')", (b"hello\n",)
    )
    assert (execution.ending, execution.exit_status, execution.output) == (
        Ending.FINISHED,
        0,
        b"hello!\n",
    )
    assert Service.requests == [
        (
            "/run_code",
            {
                "code": "print(input() + '!')",
                "language": "python",
                "stdin": "hello\n",
                "compile_timeout": 10.0,
                "run_timeout": 10.0,
                "memory_limit_MB": 64,
                "files": {},
                "fetch_files": [],
            },
        )
    ]


@pytest.mark.parametrize(
    "program",
    [
        "def solve(v): return 0",
        "import os\nos._exit(0)",
        "def solve(v):\n    import sys\n    sys.exit(0)",
        "print('10')\ndef solve(v): print('10')",
        "import json\njson.dumps = lambda *a: 'true'\ndef solve(v): return 0",
        "1 / 0",
    ],
)
def test_program_without_the_answer_passes_no_test(service, seven, program):
    assert verdict(RemoteSandbox(service, SMALL), seven, program).passed == 0


def test_right_programs_pass(service, seven):
    sandbox = RemoteSandbox(service, SMALL)
    assert verdict(sandbox, seven, "print('noise')\n" + RIGHT).success
    method = problem(inputs=[[1, 2], [3, 4]], outputs=[3, 7], function="Solution.add")
    assert verdict(
        sandbox, method, "class Solution:\n    def add(self, a, b): return a + b"
    ).success


def test_no_expected_answer_is_sent(service):
    animals = problem(inputs=[[1], [2]], outputs=["zebra", "quagga"], function="solve")
    verdict(RemoteSandbox(service, SMALL), animals, "def solve(v): return None")
    assert len(Service.requests) == 2
    assert not any(
        answer in json.dumps(Service.requests) for answer in ("zebra", "quagga", "outputs")
    )


def test_timeout_is_reported(service):
    (execution,) = executions(RemoteSandbox(service, SMALL), "while True: pass")
    assert execution.ending is Ending.WALL_TIME


def test_answer_that_is_too_long_is_an_ending(service):
    limits = replace(SMALL, output_bytes=1000)
    (execution,) = executions(RemoteSandbox(service, limits), "print('x' * 50_000)")
    assert execution.ending is Ending.OUTPUT
    Service.faults = [(200, b'"' + b"x" * 3_000_000 + b'"')]
    (execution,) = executions(RemoteSandbox(service, limits), "print(1)")
    assert execution.ending is Ending.OUTPUT


@pytest.mark.parametrize(
    "faults",
    [
        [(503, b"busy")],
        [(429, b"slow down"), (500, b"")],
        [(200, b"no JSON")],
        [(200, b"[]")],
        [(200, b'{"status": "SandboxError", "message": "out of executors"}')],
    ],
)
def test_failure_of_the_service_is_tried_again(service, faults):
    Service.faults = list(faults)
    (execution,) = executions(RemoteSandbox(service, SMALL), "print(1)")
    assert execution.output == b"1\n"
    assert len(Service.requests) == len(faults) + 1


@pytest.mark.parametrize(
    ("faults", "requests", "sentence"),
    [
        ([(503, b"")] * 3, 3, "503"),
        ([(404, b"")], 1, "404"),
        (
            [(200, b'{"status": "SandboxError", "message": "out of executors"}')] * 3,
            3,
            "out of executors",
        ),
    ],
)
def test_service_that_keeps_failing_is_not_a_wrong_answer(
    service, seven, faults, requests, sentence
):
    Service.faults = list(faults)
    with pytest.raises(SandboxFailed, match=sentence):
        verdict(RemoteSandbox(service, SMALL), seven, RIGHT)
    assert len(Service.requests) == requests


@pytest.mark.parametrize(
    "result",
    [
        [],
        {},
        {"status": "Finished", "return_code": "none"},
        {"status": "Finished", "execution_time": "long"},
    ],
)
def test_result_of_another_form_is_not_a_wrong_answer(service, seven, result):
    Service.faults = [(200, json.dumps({"status": "Success", "run_result": result}).encode())]
    with pytest.raises(SandboxFailed, match="run_result of another form"):
        verdict(RemoteSandbox(service, SMALL), seven, RIGHT)


def test_missing_service_is_not_a_wrong_answer(seven, monkeypatch):
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)
    with pytest.raises(SandboxFailed, match="did not run the program"):
        verdict(RemoteSandbox("http://127.0.0.1:9", SMALL), seven, RIGHT)


@pytest.mark.parametrize("url", ["", "sandbox:8080", "file:///etc/passwd", "http://"])
def test_invalid_address_is_refused(url):
    with pytest.raises(ValueError, match="address of a SandboxFusion service"):
        RemoteSandbox(url, SMALL)
