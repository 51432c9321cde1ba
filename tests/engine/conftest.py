"""Lets tests, and the processes that they start, import `tiny_training` and `ranks_at_work` by
name.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # spawned processes get the import paths of this one
