"""`siirl export`: writes a trained policy as a folder that transformers and the Hub read.

    siirl export outputs/run/TIME --output my_model --license apache-2.0
    hf upload OWNER/NAME my_model

RUN is a run folder (its newest checkpoint), a checkpoint, or a policy folder. The folder holds
weights with adapters merged, configuration, tokenizer, and a model card with results, command and
versions. The command uploads nothing; use `hf upload`. Read the card first: the command and the
configuration in the folder contain paths of this machine.
"""

import argparse
import re
from collections.abc import Sequence

from siirl import interrupts
from siirl.errors import SiirlError
from siirl.files.paths import find_model
from siirl.interrupts import leave
from siirl.params.command_help import argument_parser, path_flag, real
from siirl.terminal.exit_status import exit_status

MOST_GB = 1e6
DTYPES = ("float32", "bfloat16", "float16")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Exit status: 0 done, 1 failed, 2 refused, 130, 143 or 129 interrupted, 141 output closed.
    """
    flags = _parser().parse_args(argv)
    return exit_status(
        lambda: _write(flags),
        what="the export",
        failures=(SiirlError, ValueError),
        place=f"--output {flags.output}",
    )


def _write(flags: argparse.Namespace) -> None:
    import torch  # slow; Ctrl-C works meanwhile

    from siirl.jobs.hub_folder import write_hub_folder

    folder = write_hub_folder(
        find_model(flags.run, key="RUN"),
        flags.output,
        dtype=None if flags.dtype is None else getattr(torch, flags.dtype),
        most_bytes=round(flags.file_gb * 1e9),
        licence=flags.license,
        base=None if flags.base is None else find_model(flags.base, key="--base"),
    )
    print(f"Wrote {folder}. Read {folder / 'README.md'}, then: hf upload OWNER/NAME {folder}")


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__, "siirl.export")
    parser.add_argument("run", metavar="RUN", help="run folder, checkpoint or policy folder")
    parser.add_argument(
        "--output", required=True, type=path_flag, help="folder to write; new or empty"
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="type of the weights; by default as stored, which is float32 for a trained policy",
    )
    parser.add_argument(
        "--license",
        type=licence,
        default="unknown",
        help="licence in the model card, a Hub identifier such as apache-2.0 (unknown)",
    )
    parser.add_argument(
        "--file-gb",
        type=gigabytes,
        default=5.0,
        help="largest weight file, in GB; more files get an index (5)",
    )
    parser.add_argument(
        "--base",
        help="OpenVLA-OFT: the published checkpoint (a folder, or hf://owner/name), for the "
        "weights that siirl does not load; by default the run's actor_rollout_ref.model.path",
    )
    return parser


def gigabytes(text: str) -> float:
    """A size above 0."""
    value = real(text)
    if not 0 < value <= MOST_GB:
        raise argparse.ArgumentTypeError(f"{text} must be a number above 0, at most {MOST_GB:g}")
    return value


def licence(text: str) -> str:
    """An identifier in the Hub's form."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+_-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an identifier such as apache-2.0")
    return text


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    leave(main())


if __name__ == "__main__":
    command()
