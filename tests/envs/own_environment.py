"""Python environments for packages that siirl's lock does not have."""

import subprocess
import sysconfig
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GIVE_UP_S = 1200.0  # only a hang takes longer


def environment_with(packages: Path, *, folder: Path) -> Path:
    """The interpreter of a new environment in `folder`, which sees siirl and its packages as well.

    Args:
        packages: A requirements file with exact versions; dependencies that it leaves out are
            those of siirl's lock.
        folder: Is made.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (own,) = (folder / "lib").glob("python*/site-packages")
    (own / "siirl.pth").write_text(f"{sysconfig.get_path('purelib')}\n{REPOSITORY}\n")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "-r", packages], check=True, timeout=GIVE_UP_S)
    return python
