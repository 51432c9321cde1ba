"""Makes `tiny_training` and `ranks_at_work` importable in tests and the processes they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # spawned processes get the import paths of this one
