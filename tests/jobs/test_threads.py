"""The threads of a run wait only briefly for each other, a setting that must precede torch's
import.
"""

import subprocess
import sys

import pytest

from siirl.jobs.cluster_session import cluster_settings
from siirl.jobs.threads import SPIN_COUNT
from siirl.params import SiiRLArguments

TELL = """
import os, sys
import siirl.train
assert "torch" not in sys.modules, "too late to say how its threads wait"
siirl.train.main = lambda: print(os.environ["GOMP_SPINCOUNT"]) or 0
siirl.train.command()
"""


@pytest.mark.parametrize(("users", "told"), [({}, "2000"), ({SPIN_COUNT: "7"}, "7")])
def test_the_command_sets_it_before_torch_is_imported_and_keeps_the_users_choice(
    users, told, monkeypatch
):
    monkeypatch.delenv(SPIN_COUNT, raising=False)
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    said = subprocess.run([sys.executable, "-c", TELL], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == told
    assert cluster_settings(SiiRLArguments().cluster).env_vars[SPIN_COUNT] == told
