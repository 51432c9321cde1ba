"""Shell completion: its words, and the completions of real shells."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from siirl import completion
from siirl.commands import SUBCOMMANDS
from siirl.completion import choices_of, script, settings
from siirl.params.command_line import FLAGS
from siirl.params.config_groups import options
from siirl.params.parser import known_keys
from siirl.params.schema import Key

ASK = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2}
shift 2
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_siirl
printf '%s\\n' "${COMPREPLY[@]}"
"""
SECONDS = 600.0  # for an answer from an interactive shell; only a hang takes longer


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "siirl"
    file.write_text(script("bash"))
    return file


def ask(bash_script: Path, line: str, words: Sequence[str]) -> list[str]:
    """COMPREPLY for a line that bash has cut into words; the last one is being typed."""
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", str(bash_script), line, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words", "expected"),
    [
        ("siirl tr", ["siirl", "tr"], ["train"]),
        ("siirl --v", ["siirl", "--v"], ["--version"]),
        ("siirl train pipel", ["siirl", "train", "pipel"], ["pipeline="]),
        (
            "siirl train pipeline=",
            ["siirl", "train", "pipeline", "="],
            ["dapo", "embodied_srpo", "grpo", "ppo", "remax"],
        ),
        (
            "siirl train env=math pipeline=g",
            ["siirl", "train", "env", "=", "math", "pipeline", "=", "g"],
            ["grpo"],
        ),
        ("siirl train act", ["siirl", "train", "act"], ["actor_rollout_ref."]),
        (
            "siirl train trainer.total",
            ["siirl", "train", "trainer.total"],
            ["trainer.total_epochs=", "trainer.total_steps="],
        ),
        ("siirl train trainer.blind=", ["siirl", "train", "trainer.blind", "="], ["false", "true"]),
        ("siirl train env", ["siirl", "train", "env"], ["env.", "env="]),
        ("siirl train --p", ["siirl", "train", "--p"], ["--plan"]),
        (
            "siirl evaluate actions=",
            ["siirl", "evaluate", "actions", "="],
            ["argmax", "both", "sampled"],
        ),
        ("siirl report --f", ["siirl", "report", "--f"], ["--failures"]),
        ("siirl report pipel", ["siirl", "report", "pipel"], []),
        ("siirl completion z", ["siirl", "completion", "z"], ["zsh"]),
        ("siirl nothing pipel", ["siirl", "nothing", "pipel"], []),
    ],
)
def test_bash_gets_the_completions(
    bash_script: Path, line: str, words: list[str], expected: list[str]
) -> None:
    assert ask(bash_script, line, words) == expected


SETUP = {
    "bash": "source {folder}/siirl",
    "zsh": "fpath=({folder} $fpath); autoload -Uz compinit; compinit -D -u",
}
"""What makes the completion known, in a folder with the script under the name of each shell."""
SHELLS = {
    "bash": ("--norc", "--noprofile", "-i"),
    "zsh": ("-f", "-i"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_an_interactive_shell_types_the_rest_of_the_words(shell: str, tmp_path: Path) -> None:
    """In bash with `=` among the word breaks, which is the default."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for name in ("bash", "zsh"):
        (tmp_path / {"bash": "siirl", "zsh": "_siirl"}[name]).write_text(script(name))
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        environment = {"PATH": os.environ["PATH"], "PS1": "ready> ", "TERM": "dumb"}
        os.execvpe(shell, [shell, *SHELLS[shell]], environment)
    try:
        read_until(terminal, b"ready> ")
        setup = SETUP[shell].format(folder=tmp_path)
        os.write(terminal, f"{setup}; siirl() {{ echo GOT:$*:; }}; echo KNOWN=1\n".encode())
        read_until(terminal, rb"\nKNOWN=1\r[^$]*ready> ")
        os.write(terminal, b"siirl tra\tpipel\tgr\tactor_rollout_ref.m\tpa\tx\n")
        said = read_until(terminal, b"GOT:[^$]*:\r")
        assert b"GOT:train pipeline=grpo actor_rollout_ref.model.path=x:" in said
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def read_until(terminal: int, pattern: bytes) -> bytes:
    """Output of an interactive program up to `pattern`."""
    said, deadline = b"", time.monotonic() + SECONDS
    while re.search(pattern, said) is None:
        assert time.monotonic() < deadline, said
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 65536)
    return said


FISH_ANSWERS = {
    "siirl tr": ["train"],
    "siirl train pipeline=g": ["pipeline=grpo"],
    "siirl report --roll": ["--rollouts"],
    "siirl completion z": ["zsh"],
}


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize("line", FISH_ANSWERS)
def test_fish_gets_the_completions(line: str, tmp_path: Path) -> None:
    (tmp_path / "siirl.fish").write_text(script("fish"))
    command = f"source {tmp_path / 'siirl.fish'}; complete -C '{line}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [answer.split("\t")[0] for answer in done.stdout.splitlines()] == FISH_ANSWERS[line]


def test_every_group_and_key_is_a_word_and_every_word_a_group_or_key() -> None:
    keys = {place for place, key in known_keys({}).items() if not key.metadata.get("derived")}
    assert {word.partition("=")[0] for word in settings()} == keys | options().keys()
    assert {f"{group}={option}" for group, names in options().items() for option in names} <= set(
        settings()
    )
    assert {"reward=null", "experiment=null", "env.render_quality=fast"} <= set(settings())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_no_word_has_a_meaning_to_a_shell(shell: str) -> None:
    words = [
        *settings(),
        *SUBCOMMANDS,
        *(word for subcommand in SUBCOMMANDS.values() for word in subcommand.words),
    ]
    assert [word for word in words if re.fullmatch(r"[A-Za-z0-9_.=+-]+", word) is None] == []
    assert re.search(r"@[A-Z]+@", script(shell)) is None


@pytest.mark.parametrize(
    ("hint", "metadata", "expected"),
    [
        (bool, {}, ("false", "true")),
        (bool | None, {}, ("false", "true")),
        (str | None, {"choices": ("fast", "full")}, ("fast", "full")),
        (tuple[str, ...], {"choices": ("console", "wandb")}, ()),
        (int, {}, ()),
    ],
)
def test_the_choices_of_a_key(
    hint: object, metadata: dict[str, object], expected: tuple[str, ...]
) -> None:
    assert choices_of(Key("some.key", hint, None, metadata)) == expected


def test_the_flags_of_training_are_those_of_its_command_line() -> None:
    assert set(SUBCOMMANDS["train"].words) == set(FLAGS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "siirl: No shell given. Type: siirl completion bash, zsh or fish.\n"),
        (
            ["bash", "zsh"],
            "siirl: More than one word given. Type: siirl completion bash, zsh or fish.\n",
        ),
        (["bahs"], "siirl: Unknown shell 'bahs'. Did you mean 'bash'? Known: bash, fish, zsh.\n"),
    ],
)
def test_a_line_without_a_known_shell_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completion.main(words) == 2
    assert capsys.readouterr() == ("", sentence)


def test_the_script_is_made_in_half_a_second_of_processor_time() -> None:
    code = (
        "import sys, time; from siirl.completion import main; main(['bash']); "
        "print(time.process_time(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stderr) < 0.5
