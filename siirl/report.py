"""`python -m siirl.report <run folder>`: write report.html anew; a run writes it at its end, and this works while it goes on as well."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from siirl.dag_worker.report_page import write_report
from siirl.errors import SiirlError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m siirl.report", description="Write report.html into the folder of a run.")
    parser.add_argument("folder", type=Path, help="folder of a run, outputs/<name>/<time>")
    folder = parser.parse_args(argv).folder
    try:
        print(write_report(folder))
    except (SiirlError, OSError, ValueError) as error:
        print(f"siirl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
