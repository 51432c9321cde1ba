"""The documents' name of the entry: `python -m siirl.main_dag` is `python -m siirl.train`."""

import sys

from siirl.train import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
