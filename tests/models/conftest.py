"""Lets tests import `tiny_models` by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
