"""The project as a whole: facts of the README, directions of imports, unique names, a complete
wheel.
"""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import envs.libero.folders
import envs.metaworld.metaworld_env
import siirl
from siirl.reporting.metrics import METRICS, declaration
from siirl.reporting.optional_writers import OPTIONAL

PACKAGES = ("siirl", "envs", "vjepa", "pipelines")


def run(
    *command: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def pins(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines)
    }


def test_the_tree_in_contributing_is_the_top_level(repository: Path) -> None:
    tree = re.search(r"```text\n(.*?)```", (repository / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert tree is not None
    told = {line.split()[0].rstrip("/"): line.split(maxsplit=1)[1] for line in tree[1].splitlines()}
    # a user's own files in the checkout are none of the project's
    listed = run("git", "ls-files", cwd=repository)
    assert told.keys() == {line.split("/")[0] for line in listed.stdout.splitlines()}, listed.stderr


def test_every_folder_and_file_that_the_readme_names_exists(repository: Path) -> None:
    named = re.findall(
        r"`([a-z_]+/[a-z_./]*)`|\]\(([a-z_./]+)\)", (repository / "README.md").read_text()
    )
    in_run_folder = {"videos/", "rollouts/", "tensorboard/", "checkpoints/"}
    missing = [
        a or b
        for a, b in named
        if (a or b) not in in_run_folder and not (repository / (a or b)).exists()
    ]
    assert missing == []


def test_every_pin_is_exact_and_unique(repository: Path) -> None:
    runtime, testing = (
        pins(repository / "requirements.lock"),
        pins(repository / "requirements-test.lock"),
    )
    documenting = pins(repository / "requirements-docs.lock")
    assert not runtime.keys() & testing.keys()
    assert not (runtime.keys() | testing.keys()) & documenting.keys()
    for name, file in (
        ("torch", "requirements.lock"),
        ("pip", "requirements.lock"),
        ("setuptools", "requirements.lock"),
    ):
        assert len(re.findall(f"^{name}==", (repository / file).read_text(), re.MULTILINE)) == 1


def test_the_lock_fits_the_requirements_of_the_package(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    pinned = pins(repository / "requirements.lock")
    wanted = [Requirement(line) for line in project["dependencies"]]
    assert [
        str(r) for r in wanted if pinned.get(canonicalize_name(r.name), "") not in r.specifier
    ] == []


def violations(repository: Path, folder: Path) -> Path:
    """A copy of the packages in which every import contract is broken once."""
    for name in PACKAGES:
        shutil.copytree(
            repository / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(repository / "pyproject.toml", folder)
    for file, line in {
        "siirl/algos/__init__.py": "import siirl.params\nimport transformers",
        "siirl/params/__init__.py": "import siirl.dag_worker\nimport ray",
        "siirl/execution/dag/__init__.py": "import torch",
        "envs/__init__.py": "import siirl.errors",
        "vjepa/__init__.py": "import envs.base",
        "pipelines/__init__.py": "import siirl.errors",
    }.items():
        with (folder / file).open("a") as stream:
            stream.write(f"\n{line}\n")
    return folder


def test_each_import_contract_notices_its_violation(repository: Path, tmp_path: Path) -> None:
    done = run(
        str(Path(sys.executable).with_name("lint-imports")),
        "--no-cache",
        cwd=violations(repository, tmp_path),
    )
    verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)", done.stdout, re.MULTILINE))
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    assert verdicts == {contract["name"]: "BROKEN" for contract in contracts}, (
        done.stdout + done.stderr
    )


def test_a_strangers_package_of_the_same_name_is_refused(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").write_text("")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(repository)!r}]; import siirl"
    done = run(sys.executable, "-I", "-c", code, cwd=tmp_path)
    assert done.returncode != 0
    assert (
        f"needs its own package 'envs' at {repository / 'envs'}, but {tmp_path / 'envs'} comes "
        "first" in done.stderr
    )


def metric_names(file: Path) -> Iterator[str]:
    """String constants that look like a metric of a declared area."""
    areas = "|".join({name.split("/")[0] for name in METRICS})
    constants = (
        node.value
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
    )
    return (
        value
        for value in constants
        if isinstance(value, str) and re.fullmatch(rf"({areas})/[a-z0-9_]*[a-z0-9]", value)
    )


def test_every_metric_that_the_code_names_is_declared(repository: Path) -> None:
    names = {
        name
        for package in ("siirl", "vjepa")
        for file in (repository / package).rglob("*.py")
        for name in metric_names(file)
    }
    assert "actor/grad_norm" in names
    for name in names:
        declaration(name)


@pytest.fixture(scope="module")
def installed_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like site-packages, with nothing but the wheel."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_a_wheel_finds_its_configs_and_weights(repository: Path, installed_wheel: Path) -> None:
    show = "from siirl.files import paths; print(paths.config_dir()); print(paths.asset_path(''))"
    code = f"import sys; sys.path.insert(0, {str(installed_wheel)!r}); {show}"
    done = run(sys.executable, "-I", "-c", code, cwd=installed_wheel)
    configs, assets = map(Path, done.stdout.split())
    for found, shipped in ((configs, repository / "configs"), (assets, repository / "assets")):
        assert installed_wheel in found.parents, done.stderr
        assert {file.relative_to(found) for file in found.rglob("*")} == {
            file.relative_to(shipped)
            for file in shipped.rglob("*")
            if "__pycache__" not in file.parts
        }


def test_a_wheel_prints_the_resolved_configuration_anywhere(
    installed_wheel: Path, tmp_path: Path
) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(installed_wheel)!r}); from siirl.train import main; "
        "sys.exit(main(['--cfg', 'job']))"
    )
    done = run(sys.executable, "-I", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "actor_rollout_ref" in done.stdout


def test_a_wheel_has_the_four_packages_and_nothing_else_on_top(installed_wheel: Path) -> None:
    tops = {path.name for path in installed_wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == set(PACKAGES)


def test_a_wheel_has_its_metadata(repository: Path, installed_wheel: Path) -> None:
    (metadata,) = importlib.metadata.distributions(path=[str(installed_wheel)])
    told = metadata.metadata
    assert metadata.version == siirl.__version__
    assert (told["License-Expression"], told["License-File"], told["Author"]) == (
        "Apache-2.0",
        "LICENSE",
        "siirl authors",
    )
    assert set(told.get_all("Provides-Extra") or []) == {
        "docs",
        "libero",
        "metaworld",
        "mlflow",
        "reasoning-gym",
        "timm",
        "trackio",
        "vllm",
        "wandb",
    }
    assert [(script.name, script.value) for script in metadata.entry_points] == [
        ("siirl", "siirl.commands:script")
    ]
    assert metadata.read_text("licenses/LICENSE") == (repository / "LICENSE").read_text()


def test_the_version_is_defined_once_and_the_documents_follow_it(repository: Path) -> None:
    assert f"\nversion: {siirl.__version__}\n" in (repository / "CITATION.cff").read_text()
    assert (
        f"siirl-{siirl.__version__}-py3-none-any.whl"
        in (repository / "docs" / "installing.md").read_text()
    )
    newest = re.search(
        r"^## \[(\d+\.\d+\.\d+)\]", (repository / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest is not None and newest[1] == siirl.__version__


def test_the_lock_has_what_the_extras_require(repository: Path) -> None:
    """Except for vLLM and wandb, which are not in it."""
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    pinned = pins(repository / "requirements.lock")
    wanted = [Requirement(line) for line in extras["libero"]]
    assert [
        str(r) for r in wanted if pinned.get(canonicalize_name(r.name), "") not in r.specifier
    ] == []


def test_every_optional_writer_is_an_extra_of_what_its_refusal_installs(repository: Path) -> None:
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name, (_, packages) in OPTIONAL.items():
        assert [Requirement(line).name for line in extras[name]] == packages.split()


def test_the_commands_that_install_simulators_name_the_pinned_versions(repository: Path) -> None:
    pinned = pins(repository / "requirements.lock")
    for command in (envs.metaworld.metaworld_env.INSTALL, envs.libero.folders.INSTALL):
        assert "pip install --no-deps " in command
        named = dict(re.findall(r"([a-z-]+)==([0-9.]+)", command))
        assert named == {name: pinned[name] for name in named} != {}
        assert command.partition(",")[0] in (repository / "docs" / "installing.md").read_text()


def test_files_that_documents_name_exist(repository: Path) -> None:
    """Links between pages of the site are followed by tests/docs."""
    documents = [*repository.glob("*.md"), *(repository / "docs").rglob("*.md")]
    missing = []
    for document in documents:
        text = document.read_text()
        links = re.findall(r"\]\(([\w./-]+)\)", text) if document.parent == repository else []
        named = [
            *links,
            *re.findall(r"`((?:siirl|envs|vjepa|pipelines|configs|docs|tests)/[\w./-]+)`", text),
        ]
        missing += [
            (document.name, name)
            for name in named
            if not any((place / name).exists() for place in (document.parent, repository))
        ]
    assert missing == []
