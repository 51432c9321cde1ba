"""The sandbox in a user namespace with a single user, as in rootless containers and with
`unshare -Ur`: accepted, and no weaker.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from envs.sandbox.isolation import _maps_nobody

SINGLE_USER = ("unshare", "--user", "--map-root-user")
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
PROGRAM = """
from envs.sandbox.sandbox_env import make_sandbox
from envs.sandbox.limits import Limits
from trials import executions
(execution,) = executions(make_sandbox("bubblewrap", limits=Limits()), "import os; print(os.getuid(), os.listdir('/tmp'))")
print(execution.output.decode(), end="")
"""


def run_in(namespace, *arguments, repository):
    """This interpreter with `arguments`, in a user namespace that `namespace` makes."""
    path = f"{repository}:{Path(__file__).parent}"
    command = [*namespace, "env", f"PYTHONPATH={path}", sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1500, cwd=repository)


@pytest.fixture(params=[SINGLE_USER, (*AS_NOBODY, *SINGLE_USER)], ids=["as we are", "as nobody"])
def namespace(request, small):
    """Command that enters the namespace; skips if that is not allowed, or if this interpreter is
    closed to its user.
    """
    if (
        subprocess.run([*request.param, sys.executable, "-c", ""], capture_output=True).returncode
        != 0
    ):
        pytest.skip("no user namespace can be made here, or its user cannot reach this interpreter")
    return request.param


def test_a_namespace_with_a_single_user_is_used(namespace, repository):
    ended = run_in(namespace, "-c", PROGRAM, repository=repository)
    assert (ended.stdout, ended.returncode) == ("65534 []\n", 0), ended.stderr


@pytest.mark.slow
def test_nothing_gets_out_in_a_namespace_with_a_single_user(namespace, repository):
    files = [
        str(Path(__file__).with_name(f"test_sandbox_{name}.py")) for name in ("escapes", "abuses")
    ]
    with tempfile.TemporaryDirectory() as folder:  # `nobody` cannot enter pytest's own
        os.chmod(folder, 0o777)
        options = ("-q", "-p", "no:cacheprovider", f"--basetemp={folder}/base")
        ended = run_in(namespace, "-m", "pytest", *options, *files, repository=repository)
    assert ended.returncode == 0, ended.stdout[-4000:]


@pytest.mark.parametrize(
    ("id_map", "expected"),
    [
        ("         0          0 4294967295\n", True),
        ("         0          0          1\n", False),
        ("         0       1000          1\n         1     100000      65536\n", True),
        ("         0       1000          1\n         1     100000      65533\n", False),
        ("     65534       1000          1\n", True),
    ],
)
def test_the_user_nobody_is_detected_in_a_map_of_users(id_map, expected):
    assert _maps_nobody(id_map) is expected
