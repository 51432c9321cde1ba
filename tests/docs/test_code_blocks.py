"""Every code block of the documents is run, or gives a reason.

Commands that train are checked up to the start of the first process: configuration, files,
environment and graph. `test_commands_train.py` runs them for a step.
"""

import io
import json
import re
from contextlib import chdir, redirect_stdout
from pathlib import Path

import pytest
import yaml

from siirl.commands import SUBCOMMANDS
from siirl.params.command_line import read_command_line
from siirl.params.parser import parse
from siirl.preflight.configured_graph import load_graph
from siirl.preflight.early_checks import check_early
from tests.docs.code_blocks import OUTPUT, Block, blocks, documents

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "docs" / "examples"
ALL = list(blocks(REPOSITORY))
RUN = [block for block in ALL if block.mark is None]
MY_REWARDS = next(block.code for block in ALL if block.code.startswith("def score("))
MAKE = ("demo", "test", "test-slow", "docs", "setup", "vllm", "clean")
"""Targets that the documents name; CI runs `make test`, which needs setup."""


def of(*languages: str) -> list[Block]:
    return [block for block in RUN if block.language in languages]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the files that pages show, and the data that they use."""
    import own_data

    made = tmp_path_factory.mktemp("reader")
    (made / "my_rewards.py").write_text(MY_REWARDS)
    for file in EXAMPLES.iterdir():
        (made / file.name).symlink_to(file)
    (made / "hub_model").symlink_to(REPOSITORY / "assets" / "tiny_lm")
    own_data.main(made / "my_data", train=40, test=10)
    return made


def test_every_block_is_run_or_says_why_not() -> None:
    known = ("bash", "python", "yaml", "json", *OUTPUT)
    assert [str(block) for block in RUN if block.language not in known] == []
    short = [str(block) for block in ALL if block.mark == "not run" and len(block.words) < 20]
    assert short == []


def test_a_test_that_runs_a_block_exists() -> None:
    named = [block.words for block in ALL if block.mark == "run by"]
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_a_page_shows_the_files_that_its_commands_name() -> None:
    files = {file.stem: file.name for file in EXAMPLES.iterdir() if file.is_file()}
    missing = [
        f"{block}: {files[name]}"
        for block in ALL
        for name in files
        if block.language == "bash" and re.search(rf"(?<!:)\b{name}\b", block.code)
        if f"docs/examples/{files[name]}" not in (page := (REPOSITORY / block.document).read_text())
        and f"examples/{files[name]})" not in page
    ]
    assert missing == []
    of_a_checkout = [str(block) for block in ALL if "docs.examples" in block.code]
    assert of_a_checkout == []


def test_a_module_of_a_command_is_a_file_of_the_documents() -> None:
    """`env.id=boat:Dock-v0` in the text needs a page that shows boat.py."""
    files = {file.stem for file in EXAMPLES.iterdir()} | {"my_package", "my_module", "module"}
    texts = {file: file.read_text() for file in documents(REPOSITORY)}
    unknown = [
        f"{file.name}: {module}"
        for file, text in texts.items()
        for module in re.findall(r"env\.(?:id|name)=(\w+):\w", text)
        if module not in files
    ]
    assert unknown == []


def test_every_use_of_a_report_stands_in_its_tutorial() -> None:
    tutorial = (REPOSITORY / "docs" / "tutorials" / "report.md").read_text()
    flags = [word for word in SUBCOMMANDS["report"].words if word != "--help"]
    assert [flag for flag in flags if f"{flag} " not in tutorial] == []


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_a_python_block_runs(block: Block, folder: Path) -> None:
    with chdir(folder), redirect_stdout(io.StringIO()):
        exec(compile(block.code, str(block), "exec"), {"__name__": "documented"})


@pytest.mark.parametrize("block", of("json", "yaml"), ids=str)
def test_a_data_block_can_be_read(block: Block) -> None:
    assert json.loads(block.code) if block.language == "json" else yaml.safe_load(block.code)


def trained(words: list[str]) -> list[str] | None:
    """Arguments of a command that trains, else None."""
    return words[2:] if words[:2] == ["siirl", "train"] else None


COMMANDS = [(block, words) for block in of("bash") for words in block.commands]
TRAINING = {
    tuple(arguments): block
    for block, words in COMMANDS
    if (arguments := trained(words)) is not None and not {"--help", "--cfg"} & set(arguments)
}


@pytest.mark.parametrize("arguments", TRAINING, ids=" ".join)
def test_a_command_that_trains_could_start(arguments: tuple[str, ...], folder: Path) -> None:
    with chdir(folder):
        line = read_command_line(arguments)
        parsed = parse(line.overrides, config_file=line.config_file)
        check_early(parsed.config, named=parsed.named)
        load_graph(parsed.config)


def is_known(words: list[str]) -> bool:
    """Whether a command is one that this or another test runs."""
    match words:
        case ["make", target]:
            return target in MAKE
        case ["siirl", subcommand, *_]:
            return subcommand in SUBCOMMANDS
        case ["python", "own_data.py", *_]:
            return True
        case _:
            return False


def test_other_commands_are_run_by_a_test_or_say_why_not() -> None:
    unknown = [f"{block}: {' '.join(words)}" for block, words in COMMANDS if not is_known(words)]
    assert unknown == []


def test_subcommands_beside_train_need_no_run() -> None:
    """`siirl doctor` and `siirl train --help` can be typed anywhere; others are marked."""
    anywhere = ("doctor", "train", "completion")
    wrong = [
        f"{block}: {' '.join(words)}"
        for block, words in COMMANDS
        if words[0] == "siirl" and words[1] not in anywhere
    ]
    assert wrong == []
