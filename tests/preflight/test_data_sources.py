"""Data sources of `reward.functions`: each is that of a row, and each row has a part of the reward."""

import json
from pathlib import Path

import pytest

from siirl.errors import ConfigError
from siirl.params.reward_args import CustomRewardArguments, RewardArguments, reward_parts
from siirl.preflight.check_text import check_data_sources
from siirl.terminal.exit_status import REFUSED
from siirl.train import main


def check(*sources: list[str] | None, rows: set[str]) -> None:
    """Check a reward with a part for each of these lists, None serving all rows."""
    functions = tuple(
        {"name": f"math:{name}", **({} if each is None else {"data_sources": each})}
        for name, each in zip(("sqrt", "exp"), sources, strict=False)
    )
    parts = reward_parts(RewardArguments(functions=functions), CustomRewardArguments())
    check_data_sources(parts, {"data.train_files": rows, "data.val_files": {"gsm8k"}})


def test_parts_that_serve_every_row_by_name_are_accepted() -> None:
    check(["gsm8k"], ["code"], rows={"gsm8k", "code"})


def test_a_data_source_that_no_row_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError,
        match=r"Unknown data source of data.train_files, data.val_files "
        r"\(reward.functions\[1\].data_sources\) 'gsm8'. Did you mean 'gsm8k'\? Known: gsm8k",
    ):
        check(None, ["gsm8"], rows={"gsm8k"})


def test_a_data_source_that_no_part_serves_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"No part of the reward serves the data source 'code' of data.train_files: add it",
    ):
        check(["gsm8k"], rows={"gsm8k", "code"})


def test_the_last_row_of_a_file_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": f"{number}+1="}],
            "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
        }
        for number, source in enumerate(["sums"] * 99 + ["proofs"])
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["pipeline=grpo", "env=math", f"data.train_files=[{file}]", "--plan"]
    functions = "reward.functions=[{name: success, data_sources: [sums]}]"
    assert main([*words, functions]) == REFUSED
    assert (
        "No part of the reward serves the data source 'proofs' of data.train_files"
        in capsys.readouterr().err
    )


def test_a_generated_task_is_a_data_source(capsys: pytest.CaptureFixture[str]) -> None:
    functions = "reward.functions=[{name: success, data_sources: [sums-3]}]"
    assert main(["pipeline=grpo", "env=math", functions, "--plan"]) == REFUSED
    assert "Unknown data source of env=math" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"data_sources": []}, r"data_sources=\[\] serves no row"),
        ({"data_sources": 7}, "data_sources=7 must be a list of names"),
        ({"data_sources": {"a": 1}}, r"data_sources=\{'a': 1\} must be a list of names"),
        ({"data_sources": ["a", None]}, r"data_sources=\['a', None\] must be a list of names"),
        ({"batched": "no"}, "batched='no' must be true or false"),
        ({"weight": 0}, "All weights of reward.functions are 0, so every reward is 0"),
    ],
)
def test_a_part_of_a_wrong_form_is_refused(part: dict[str, object], message: str) -> None:
    reward = RewardArguments(functions=({"name": "success", **part},))
    with pytest.raises(ConfigError, match=message):
        reward_parts(reward, CustomRewardArguments())
