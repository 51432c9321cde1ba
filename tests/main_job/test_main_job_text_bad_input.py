"""Bad input of a text job, on the command line: refused with its place, or read literally."""

import base64
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from siirl.preflight.plan_text import ROWS_BEFORE_START
from siirl.terminal.exit_status import FAILED, REFUSED
from siirl.train import main

JOB = ["env=math", "pipeline=grpo"]
SHIPPED = Path(__file__).parents[2] / "assets" / "tiny_lm"
FUNCTIONS = """
def takes_other_things(batch):
    return 1.0

def fits(data_source, solution_str, ground_truth, extra_info):
    return 1.0

not_callable = 3
"""


@pytest.fixture
def plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Plans a job in an empty folder; returns the exit status and the output."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str, pipeline: str = "grpo") -> tuple[int, str]:
        status = main(["--plan", "env=math", f"pipeline={pipeline}", *words])
        return status, capsys.readouterr().err

    return command


# The model


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "no/such/folder",
            "actor_rollout_ref.model.path=no/such/folder: there is no folder no/such/folder; give "
            "a folder with config.json, "
            "model.safetensors and a tokenizer, a hub id (organisation/model), or use "
            "model=tiny_lm.",
        ),
        (
            "outputs/model",
            "there is no folder outputs/model here, and the Hub is not asked: HF_HUB_OFFLINE is "
            "set. Give a folder with",
        ),
        (
            "organisation/Model-0.5B",
            "there is no folder organisation/Model-0.5B here, and the Hub is not asked: "
            "HF_HUB_OFFLINE is set.",
        ),
        (
            "null",
            "actor_rollout_ref.model.path=null names no language model: give a folder or a hub id, "
            "or use model=tiny_lm.",
        ),
    ],
)
def test_a_missing_model_is_refused(plan, path: str, expected: str) -> None:
    status, said = plan("model=causal_lm", f"actor_rollout_ref.model.path={path}")
    assert status == REFUSED
    assert said.startswith("siirl: actor_rollout_ref.model.path=")
    assert expected in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("critic.path", []),
        ("actor_rollout_ref.ref.path", ["actor_rollout_ref.actor.use_kl_loss=true"]),
        ("reward_model.path", ["reward.name=model"]),
    ],
)
def test_further_missing_models_are_refused_by_their_own_key(
    plan, key: str, words: list[str]
) -> None:
    status, said = plan(*words, f"{key}=outputs/model", pipeline="ppo")
    assert status == REFUSED
    assert said.startswith(
        f"siirl: {key}=outputs/model: there is no folder outputs/model here, and the Hub is not "
        "asked"
    )


@pytest.mark.parametrize("asked", ["reward.name=model", "reward.functions=[{name:model}]"])
def test_a_missing_folder_of_a_reward_model_is_refused(plan, asked: str) -> None:
    status, said = plan(asked, "reward_model.path=/no/where")
    assert status == REFUSED
    assert said.startswith("siirl: reward_model.path=/no/where: there is no folder /no/where; ")
    assert len(said.splitlines()) == 1


def test_a_hub_id_of_one_word_is_asked_for_before_a_run(plan) -> None:
    status, said = plan("reward.name=model", "reward_model.path=judge")
    assert status == REFUSED
    assert said.startswith("siirl: reward_model.path=judge: there is no folder judge here, and the")


def test_a_mistyped_folder_is_reported_at_once_where_the_hub_cannot_be_reached(
    tmp_path: Path,
) -> None:
    """Without an offline setting, as most users are: nothing listens at the Hub's address. Retries
    would take minutes and print messages.
    """
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        online = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "TRANSFORMERS_"))
        }
        hub = {
            "HF_ENDPOINT": f"http://127.0.0.1:{nobody.getsockname()[1]}",
            "HF_HOME": str(tmp_path / "cache"),
        }
        words = ["--plan", *JOB, "model=causal_lm", "actor_rollout_ref.model.path=outputs/model"]
        command = [sys.executable, "-m", "siirl.train", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=online | hub, capture_output=True, text=True, check=False
        )
    assert done.returncode == REFUSED
    assert done.stderr == (
        "siirl: actor_rollout_ref.model.path=outputs/model: there is no folder outputs/model here, "
        "and the Hub could not be reached "
        "([Errno 111] Connection refused). Give a folder with config.json, model.safetensors and a "
        "tokenizer, or try again.\n"
    )


def changed_model(folder: Path, *, without: tuple[str, ...] = (), **tokens: str | None) -> Path:
    """The shipped model without some of its files, and with other entries in its
    tokenizer_config.json; None takes one out.
    """
    shutil.copytree(SHIPPED, folder)
    for name in without:
        (folder / name).unlink()
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | tokens
    file.write_text(
        json.dumps({name: value for name, value in settings.items() if value is not None})
    )
    return folder


TEMPLATE, GENERATION = "chat_template.jinja", "generation_config.json"


@pytest.mark.parametrize(
    ("without", "tokens"),
    [((), {"pad_token": None}), ((TEMPLATE,), {}), ((GENERATION, TEMPLATE), {"pad_token": None})],
    ids=["no pad token", "no chat template", "neither"],
)
def test_a_tokenizer_without_pad_token_or_chat_template_is_accepted(
    plan, tmp_path: Path, without, tokens
) -> None:
    """It pads with its end, and messages are joined by line ends."""
    assert (
        plan(
            f"actor_rollout_ref.model.path={changed_model(tmp_path / 'model', without=without, **tokens)}"
        )[0]
        == 0
    )


@pytest.mark.parametrize("pad_token", [None, "<|pad|>"])
def test_a_tokenizer_with_which_no_response_could_end_is_refused(
    plan, tmp_path: Path, pad_token: str | None
) -> None:
    folder = changed_model(
        tmp_path / "model", without=(GENERATION, TEMPLATE), pad_token=pad_token, eos_token=None
    )
    status, said = plan(f"actor_rollout_ref.model.path={folder}")
    assert status == REFUSED
    assert f"{folder} has n" in said  # neither ... nor, or no
    assert "so no response could end: set eos_token in its tokenizer_config.json." in said


def test_prompts_that_may_be_longer_than_the_model_are_refused_with_both_lengths(plan) -> None:
    status, said = plan(
        "data.max_prompt_length=4000", "actor_rollout_ref.actor.micro_batch_tokens=8000"
    )
    assert status == REFUSED
    assert (
        "data.max_prompt_length=4000 + data.max_response_length=64 = 4064 tokens, but the model's "
        "context has 2048: reduce them by" in said
    )


# The prompts


def row(number: int, **columns: Any) -> dict[str, Any]:
    """A right row, with some columns changed; a column that is given as None is left out."""
    question = [{"role": "user", "content": f"{number}+{number}="}]
    right = {
        "data_source": "sums",
        "prompt": question,
        "reward_model": {"style": "rule", "ground_truth": str(2 * number)},
    }
    return {name: value for name, value in (right | columns).items() if value is not None}


def written(file: Path, rows: list[dict[str, Any]]) -> Path:
    if file.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows or [row(1)])[: len(rows)], file)
    else:
        file.write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    return file


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("key", ["train_files", "val_files"])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(1, reward_model=None)], "has no column 'reward_model'. It has: data_source, prompt."),
        (
            [{"instruction": "1+1=", "output": "2"}],
            "has no column 'data_source', 'prompt', 'reward_model'. It has: instruction, output.",
        ),
        ([], "has no rows. Remove it from the list, or fill it."),
    ],
    ids=["missing column", "foreign columns", "empty"],
)
def test_files_without_prompts_are_refused(
    plan, tmp_path: Path, rows, expected: str, key: str, ending: str
) -> None:
    file = written(tmp_path / f"prompts.{ending}", rows)
    sound = written(tmp_path / "sound.jsonl", [row(1)])
    status, said = plan(
        *([f"data.train_files=[{sound}]"] if key == "val_files" else []), f"data.{key}=[{file}]"
    )
    assert status == REFUSED
    assert said.startswith(f"siirl: data.{key}: {file} ")
    assert expected in said


def test_a_missing_file_is_refused(plan) -> None:
    status, said = plan("data.train_files=[prompts.jsonl]")
    assert status == REFUSED
    assert "There is no file " in said
    assert "prompts.jsonl to read prompts from" in said


UNANSWERED = row(3, reward_model={"style": "rule", "ground_truth": None})


@pytest.mark.parametrize(
    ("rows", "words", "expected"),
    [
        (
            [*map(row, range(ROWS_BEFORE_START)), UNANSWERED],
            [],
            "line 65: reward_model.ground_truth must be text or a finite number, got None. Correct "
            "or remove the row.",
        ),
        (
            [*map(row, range(ROWS_BEFORE_START + 1))],
            ["data.max_prompt_length=3"],
            "Every training prompt is longer than data.max_prompt_length=3 tokens (the shortest "
            "has 4): raise it, or use",
        ),
    ],
    ids=["no ground truth", "all too long"],
)
def test_rows_that_cannot_be_trained_on_end_the_run_before_its_first_step(
    capsys, tmp_path: Path, rows, words, expected: str
) -> None:
    """Files are read through by the ranks, each its part: a plan reads the first rows alone."""
    file = written(tmp_path / "prompts.jsonl", rows)
    small = [
        "cluster=local",
        "trainer.val_episodes=0",
        f"trainer.output_dir={tmp_path / 'out'}",
        f"data.train_files=[{file}]",
    ]
    assert main([*JOB, *small, *words]) == FAILED
    said = capsys.readouterr().err
    assert "siirl: the run failed: " in said
    assert expected in said
    assert "Traceback" not in said
    (metrics,) = (tmp_path / "out").glob("*/*/metrics.jsonl")
    assert metrics.read_text() == ""


@pytest.mark.parametrize("key", ["train_files", "val_files"])
def test_a_plan_refuses_an_invalid_one_of_the_first_rows(plan, tmp_path: Path, key: str) -> None:
    file = written(tmp_path / "prompts.jsonl", [*map(row, range(63)), UNANSWERED])
    sound = written(tmp_path / "sound.jsonl", [row(1)])
    status, said = plan(
        *([f"data.train_files=[{sound}]"] if key == "val_files" else []), f"data.{key}=[{file}]"
    )
    assert status == REFUSED
    assert said.startswith(f"siirl: data.{key}: {file}, line 64: reward_model.ground_truth must be")


def picture(*, width: int = 28, height: int = 28, cut: int | None = None) -> dict[str, str]:
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "PNG")
    return {"bytes": base64.b64encode(stream.getvalue()[:cut]).decode()}


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (
            [picture(cut=900)],
            "a picture given by its bytes is not a readable picture (image file is",
        ),
        (["https://a.org/b.png"], "is a web address; download the picture"),
        (["b.png"], "there is no file"),
        ([], "the prompt has <image> 1 times, but images has 0 pictures"),
        ([picture(width=2, height=500)], "the model does not accept a picture given by its bytes"),
    ],
    ids=["damaged", "web", "missing", "none", "ratio"],
)
def test_a_plan_refuses_a_bad_picture_of_the_first_rows(
    plan, tmp_path: Path, images: list[Any], expected: str
) -> None:
    prompt = [{"role": "user", "content": "<image>How many?"}]
    rows = [row(1, prompt=prompt, images=[picture()]), row(2, prompt=prompt, images=images)]
    file = written(tmp_path / "prompts.jsonl", rows)
    status, said = plan("model=tiny_vlm", f"data.train_files=[{file}]")
    assert status == REFUSED
    assert said.startswith(f"siirl: data.train_files: {file}, line 2: ")
    assert expected in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["data.heldout_share=0.9"], "All 64 prompts of data.train_files are held out: give other"),
        (
            ["data.max_prompt_length=3"],
            "Every training prompt is longer than data.max_prompt_length",
        ),
        (
            ["data.heldout_share=0"],
            "trainer.val_episodes asks for an evaluation, but no prompt is held out: give "
            "data.val_files, or trainer.val_episodes=0.",
        ),
    ],
)
def test_a_plan_refuses_small_files_that_leave_nothing_to_train_on(
    plan, tmp_path: Path, words: list[str], expected: str
) -> None:
    file = written(tmp_path / "prompts.jsonl", [row(1)] * ROWS_BEFORE_START)
    status, said = plan(f"data.train_files=[{file}]", *words)
    assert status == REFUSED
    assert said.startswith(f"siirl: {expected}")


def test_a_plan_of_small_files_without_an_evaluation_needs_no_held_out_prompt(
    plan, tmp_path: Path
) -> None:
    file = written(tmp_path / "prompts.jsonl", [row(1)])
    words = (f"data.train_files=[{file}]", "data.heldout_share=0")
    assert plan(*words, "trainer.val_episodes=0")[0] == 0


def test_a_plan_says_how_many_rows_it_read(
    plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "prompts.jsonl", [*map(row, range(20))])
    assert main(["--plan", *JOB, f"data.train_files=[{file}]"]) == 0
    assert "the first 64 of each list of prompt files were read" in " ".join(
        capsys.readouterr().out.split()
    )


# The reward


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lenght", "has no 'lenght'."),
        ("not_callable", "not_callable is of type int and cannot be called."),
        (
            "takes_other_things",
            "its signature does not accept the arguments (data_source, solution_str, ground_truth, "
            "extra_info): missing a required argument: 'batch'.",
        ),
    ],
)
def test_a_reward_function_that_cannot_be_called_is_refused(
    plan, tmp_path: Path, name: str, expected: str
) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(FUNCTIONS)
    status, said = plan(
        f"custom_reward_function.path={file}", f"custom_reward_function.name={name}"
    )
    assert status == REFUSED
    assert said.startswith(f"siirl: The reward function {name} of {file} cannot be used: ")
    assert said.endswith(f"{expected}\n")


def test_a_file_of_reward_functions_that_cannot_be_imported_is_refused_with_its_line(
    plan, tmp_path: Path
) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(f"import no_such_package_here\n{FUNCTIONS}")
    status, said = plan(f"custom_reward_function.path={file}", "custom_reward_function.name=fits")
    assert status == REFUSED
    assert (
        f"importing it raised ModuleNotFoundError: No module named 'no_such_package_here' ({file}, "
        "line 1)." in said
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["path=rewards.py", "name=fits"],
            "custom_reward_function.path=rewards.py: there is no such file.",
        ),
        (
            ["path=rewards.py"],
            "custom_reward_function.path=rewards.py is a file: set custom_reward_function.name to "
            "a function in it.",
        ),
        (
            ["name=no_such_module_here:fits"],
            "custom_reward_function.name=no_such_module_here:fits: there is no module",
        ),
        (["name=json:fits"], "The reward function json:fits cannot be used: "),
    ],
)
def test_a_missing_reward_function_is_refused(plan, words: list[str], expected: str) -> None:
    status, said = plan(*(f"custom_reward_function.{word}" for word in words))
    assert status == REFUSED
    assert expected in said


def test_a_reward_function_that_fits_is_taken(plan, tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(FUNCTIONS)
    assert plan(f"custom_reward_function.path={file}", "custom_reward_function.name=fits")[0] == 0
