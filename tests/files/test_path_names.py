"""A path that no file system can hold, and a pipe in place of a file, are refused."""

import os

import pytest

from siirl import evaluate, export, gpu_check, replay, report, reward_check, serve, train
from siirl import warm_start as warm_start_command
from siirl.errors import CheckpointError, ConfigError
from siirl.files.documents import read_object
from siirl.files.paths import fault_of_path, find
from siirl.params.parser import parse_config
from siirl.reporting.jsonl import read_rows

LONG = 300 * "a"
TOO_LONG = "has a file name of 300 bytes, but at most 255 are allowed"


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        (LONG, TOO_LONG),
        (f"a/{100 * '字'}/b", TOO_LONG),  # three bytes each in UTF-8
        ("/".join(50 * [100 * "a"]), "has a path of 5049 bytes, but at most 4095 are allowed"),
        ("a\0b", "has a NUL character"),
        ("~no_such_user/runs", "names the home of a user who does not exist"),
    ],
)
def test_a_path_that_no_file_system_can_hold_is_not_a_path(path, fault):
    assert fault in str(fault_of_path(path))
    with pytest.raises(ConfigError, match=r"^checkpoint "):
        find(path, key="checkpoint")


def test_the_longest_name_and_the_longest_path_are_accepted():
    assert fault_of_path(255 * "a") is None
    assert fault_of_path("/".join(["b" * 95, *(40 * [99 * "a"])])) is None  # 95 + 40 * 100 = 4095


@pytest.mark.parametrize(
    "key",
    [
        "trainer.experiment_name",
        "trainer.output_dir",
        "trainer.resume",
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.ref.path",
        "critic.path",
        "data.train_files",
        "data.val_files",
        "dag.workflow_file",
        "reward.demonstrations",
        "reward_model.path",
        "custom_reward_function.path",
        "env.assets",
    ],
)
def test_a_key_of_a_path_refuses_a_name_that_is_too_long(key):
    with pytest.raises(ConfigError) as refused:
        parse_config([f"{key}={LONG}"])
    assert str(refused.value).startswith(f"{key}")
    assert TOO_LONG in str(refused.value)


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (train.main, ["--config", LONG]),
        (evaluate.main, [f"checkpoint={LONG}"]),
        (evaluate.main, ["checkpoint=assets/tiny_vla", f"resume={LONG}"]),
        (reward_check.main, [f"checkpoint={LONG}"]),
        (serve.main, ["env=math", f"token_file={LONG}"]),
        (export.main, [LONG, "--output", "folder"]),
        (export.main, ["folder", "--output", LONG]),
        (replay.main, [LONG]),
        (report.main, [LONG]),
        (gpu_check.main, ["--json", LONG]),
        (warm_start_command.main, ["--output", LONG]),
        (warm_start_command.main, ["--output", "folder", "--clips", LONG]),
    ],
)
def test_a_command_refuses_a_name_that_is_too_long(main, words, capsys):
    try:
        status = main(words)
    except SystemExit as ended:  # argparse
        status = ended.code
    assert (status, TOO_LONG in capsys.readouterr().err) == (2, True)


def test_a_named_pipe_is_refused_before_it_blocks_its_reader(tmp_path):
    pipe = tmp_path / "metrics.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged.*a named pipe"):
        read_object(pipe, remedy="Remove it.")
    with pytest.raises(ValueError, match=r"metrics\.jsonl is a named pipe"):
        list(read_rows(pipe))
