"""Lets tests and servers import `probe_envs` by name, as they would a user's module."""

import sys
from pathlib import Path

# servers get the import paths of the process that owns the pool
sys.path.insert(0, str(Path(__file__).parent))
