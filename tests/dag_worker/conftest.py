"""Lets tests of checkpoints use the tiny policy and the ranks of tests/engine, and configurations name graphs of this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
