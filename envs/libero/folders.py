"""Locates the LIBERO package without importing it, and the cache folder, the only one written.

Importing LIBERO without a config file prompts on the terminal, so `import_libero` first writes one
into the cache folder. It also stops robosuite from logging to /tmp and Numba from writing into
site-packages.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envs.offscreen import choose_backend

# Without dependencies: their metadata pins training code and other builds of OpenCV. Their imports
# are in siirl's extra `libero`.
INSTALL = (
    "python -m pip install --no-deps hf-libero==0.1.4 robosuite==1.4.0 bddl==1.0.1, "
    "beside siirl[libero]"
)
CACHE_VARIABLE = "SIIRL_CACHE"


def cache_folder() -> Path:
    """Return `$SIIRL_CACHE/libero`, by default `~/.cache/siirl/libero`; creates it if missing.

    Raises:
        RuntimeError: It cannot be created; the message says how to choose another.
    """
    general = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get(CACHE_VARIABLE) or Path(general) / "siirl").expanduser() / "libero"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"The cache folder {folder} cannot be created ({error}): set {CACHE_VARIABLE} to a "
            "folder of your own."
        ) from error
    return folder


def package_folder() -> Path:
    """Return the installed folder `libero/libero`, with `bddl_files` and `init_files`.

    Raises:
        RuntimeError: LIBERO is not installed; the message has the command.
    """
    found = importlib.util.find_spec("libero")
    for place in (
        found.submodule_search_locations if found and found.submodule_search_locations else ()
    ):
        if (Path(place) / "libero" / "bddl_files").is_dir():
            return Path(place) / "libero"
    raise RuntimeError(f"env=libero needs the LIBERO package: {INSTALL}")


def import_libero() -> Any:
    """Import LIBERO's environments without prompts and without files outside the cache folder.

    Raises:
        RuntimeError: A package or the OpenGL library is missing; the message says what to install.
    """
    if "libero.libero.envs" in sys.modules:
        return sys.modules["libero.libero.envs"]
    choose_backend()  # before the imports of MuJoCo and robosuite, which read MUJOCO_GL
    config = cache_folder() / "config"
    _write_config(config)
    try:
        prepare_robosuite()
        # LIBERO imports its colour maps
        own = os.environ.get("MPLCONFIGDIR") or str(cache_folder() / "matplotlib")
        with (
            _environment_variable("LIBERO_CONFIG_PATH", str(config)),
            _environment_variable("MPLCONFIGDIR", own),
            # robosuite refuses an EGL device whose number is not in CUDA's list. But EGL also
            # draws on GPUs that CUDA does not show, and the list may hold UUIDs.
            _environment_variable("CUDA_VISIBLE_DEVICES", ""),
        ):
            return importlib.import_module("libero.libero.envs")
    except ModuleNotFoundError as missing:
        raise RuntimeError(
            f"env=libero needs a package that is not installed ({missing}): {INSTALL}"
        ) from missing


def prepare_robosuite() -> None:
    """Sets what robosuite reads at its import: the folder of its compiled functions, and macros
    without which its logger opens /tmp/robosuite.log.
    """
    # compiled once, which takes 5 s
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "numba"))
    found = importlib.util.find_spec("robosuite")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'robosuite'")
    path = Path(next(iter(found.submodule_search_locations))) / "macros.py"
    specification = importlib.util.spec_from_file_location("robosuite.macros", path)
    assert specification is not None and specification.loader is not None
    macros: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(macros)
    macros.FILE_LOGGING_LEVEL, macros.CONSOLE_LOGGING_LEVEL = None, "ERROR"
    sys.modules.setdefault("robosuite.macros", macros)


def _write_config(folder: Path) -> None:
    package = package_folder()
    folders = {
        "bddl_files": "bddl_files",
        "init_states": "init_files",
        "datasets": "datasets",
        "assets": "assets",
        "benchmark_root": ".",
    }
    text = "".join(f"{key}: {package / value}\n" for key, value in folders.items())
    path = folder / "config.yaml"
    if path.is_file() and path.read_text() == text:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        # servers start at the same time, so replace the file atomically
        file.write(text)
    os.replace(file.name, path)


@contextlib.contextmanager
def _environment_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
