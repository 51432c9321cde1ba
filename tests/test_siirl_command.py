"""The `siirl` command: `siirl train` is `python -m siirl.train`, and the
message for a line without a subcommand.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import siirl
from siirl import commands
from siirl.commands import GROUPS, SUBCOMMANDS

SCRIPT = (
    "import sys; sys.argv[0] = '/usr/bin/siirl'; sys.path[0] = '/usr/bin'; from siirl.commands "
    "import script; script()"
)
"""The console script as pip writes it, with the folder of scripts first on the path as Python
puts it.
"""
WAYS = {"script": ("-c", SCRIPT), "module": ("-m", "siirl")}
LOADED = """
import runpy, sys
sys.argv = {argv}
try:
    runpy.run_module("siirl", run_name="__main__")
finally:
    print(sorted({heavy}))
"""
HEAVY = "{'torch', 'ray', 'transformers', 'tensordict', 'mujoco', 'numpy'} & sys.modules.keys()"


def run(*words: str, cwd: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({} if path is None else {"PYTHONPATH": path})
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("script", ("train", "--cfg", "job", "trainer.seed=11")),
        ("module", ("train", "--cfg", "job", "trainer.seed=11")),
        ("script", ("train", "trainer.total_step=3")),
        ("module", ("evaluate",)),
        ("script", ("warm-start", "--output", "x", "env.tasks=[1.5]")),
        ("script", ("replay", "nowhere")),
    ],
    ids=str,
)
def test_a_subcommand_is_its_module(way: str, words: tuple[str, ...], tmp_path: Path) -> None:
    as_subcommand = run(*WAYS[way], *words, cwd=tmp_path)
    as_module = run("-m", SUBCOMMANDS[words[0]].module, *words[1:], cwd=tmp_path)
    for told in ("returncode", "stdout", "stderr"):
        assert getattr(as_subcommand, told) == getattr(as_module, told)
    assert as_subcommand.stdout + as_subcommand.stderr != ""
    assert "Traceback" not in as_subcommand.stderr


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["--version"], ["train", "--help"], ["completion", "bash"]]
)
def test_the_command_starts_without_torch_and_numpy(words: list[str], tmp_path: Path) -> None:
    done = run("-c", LOADED.format(argv=["siirl", *words], heavy=HEAVY), cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_help_has_a_line_for_each_subcommand(tmp_path: Path) -> None:
    done = run("-m", "siirl", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for name, subcommand in SUBCOMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(subcommand.summary)}$", done.stdout, re.MULTILINE)


def test_help_has_every_subcommand_in_one_section_and_fits_a_terminal() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(SUBCOMMANDS)
    assert max(map(len, commands.help_text().splitlines())) <= 80


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["--version"]) == 0
    assert capsys.readouterr().out == f"siirl {siirl.__version__}\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["trian"],
            "siirl: Unknown subcommand 'trian'. Did you mean 'train'? Known: completion, doctor, ",
        ),
        (["warm_start"], "siirl: Unknown subcommand 'warm_start'. Did you mean 'warm-start'?"),
        (["plan"], "siirl: 'plan' is not a subcommand: 'siirl train --plan' prints a plan."),
        (["--verison"], "siirl: Unknown flag '--verison'. Did you mean '--version'?"),
        (
            ["env=math"],
            "siirl: 'env=math' is not a subcommand. Did you mean 'siirl train env=math'?",
        ),
        ([], "siirl SUBCOMMAND ...: "),
    ],
)
def test_a_line_without_a_subcommand_is_refused_with_a_message(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(sentence)
    assert printed.out == ""


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_modules_of_the_working_folder_are_found(way: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Mine:\n    size: int = 17\n"
    )
    done = run(*way, "train", "--cfg", "job", "+user_groups.mine=mine:Mine", cwd=tmp_path)
    assert "mine:\n  size: 17\n" in done.stdout, done.stderr


def test_another_package_of_the_working_folder_is_refused_as_by_python_m(
    tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").write_text("")
    done = run("-c", SCRIPT, "train", "--cfg", "job", cwd=tmp_path, path=str(repository))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert (
        f"siirl needs its own package 'envs' at {repository / 'envs'}, but {tmp_path / 'envs'} "
        "comes first" in done.stderr
    )


SLOW_SUBCOMMAND = """
import sys, time, types
from siirl import commands
module = types.ModuleType("slow")
module.command = lambda: (print("started", flush=True), time.sleep(600))
sys.modules["slow"] = module
commands.SUBCOMMANDS = {"slow": commands.Subcommand("slow", "")}
sys.argv = ["siirl", "slow"]
commands.command()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_subcommand_with_a_message_and_its_status(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_SUBCOMMAND],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    process.send_signal(number)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (128 + number, "siirl: interrupted\n")


def test_help_without_a_reader_ends_without_a_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "siirl", "--help"],
            cwd=tmp_path,
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    ("way", "usage"),
    [
        (("-m", "siirl.doctor"), "usage: python -m siirl.doctor "),
        (("-m", "siirl.train"), "python -m siirl.train [group=option ...]"),
        (("-m", "siirl.serve"), "usage: python -m siirl.serve [word=value ...]"),
        (("-c", SCRIPT, "evaluate"), "usage: siirl evaluate [word=value ...]"),
        (("-c", SCRIPT, "doctor"), "usage: siirl doctor "),
        (("-c", SCRIPT, "train"), "siirl train [group=option ...]"),
    ],
    ids=str,
)
def test_help_names_the_command_as_it_was_typed(
    way: tuple[str, ...], usage: str, tmp_path: Path
) -> None:
    assert run(*way, "--help", cwd=tmp_path).stdout.startswith(usage)


@pytest.mark.parametrize(
    "name", [name for name in SUBCOMMANDS if name not in ("train", "completion")]
)
def test_the_words_of_a_subcommand_are_those_of_its_help(name: str, tmp_path: Path) -> None:
    text = run("-m", "siirl", name, "--help", cwd=tmp_path).stdout
    flags = {word for word in SUBCOMMANDS[name].words if word.startswith("--")}
    assert [line for line in text.splitlines() if line.startswith("    siirl ") and line[80:]] == []
    if text.startswith("usage: "):
        assert text.startswith(f"usage: siirl {name} ")
        assert set(re.findall(r"(?<=[\s,])--[a-z-]+", text)) - {"--config"} == flags, text
    for word in SUBCOMMANDS[name].words:
        assert word.startswith("--") or word.partition("=")[0] + "=" in text
