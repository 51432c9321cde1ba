"""Lets tests import `ragged`, the estimators' cases, and the ranks of tests/engine."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
