"""The supervisor of a server that has processes of another user, as below sudo."""

import os
import signal
import subprocess
import sys

import pytest

SERVER = "trap 'echo asked; exit 3' TERM; kill -TERM $PPID; sleep 600 & wait"
SUPERVISES = """
import os, subprocess, sys
from envs.tools import supervisor
foreign = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(foreign.pid, flush=True)
os.setresuid(65534, 65534, 65534)
sys.exit(supervisor.main(["sh", "-c", sys.argv[1]]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root has processes of two users")
def test_a_child_of_another_user_protects_none_of_its_siblings() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISES, SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        foreign, said = int(process.stdout.readline()), process.stdout.readline()
        os.kill(foreign, signal.SIGKILL)
    assert (said, process.returncode) == ("asked\n", 3)
