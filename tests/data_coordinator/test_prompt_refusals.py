"""Prompt files that are refused, each with its place and remedy."""

import dataclasses
import json
import re

import pyarrow
import pytest
from pyarrow import parquet

from envs.text import message
from siirl.data_coordinator.prompts.dataset import task_name
from siirl.errors import CheckpointError, ConfigError, InvariantError, MissingAssetError
from tests.data_coordinator.prompt_loaders import loader, loader_for, row, rows, written


@pytest.mark.parametrize(
    ("env", "bad", "told"),
    [
        ("math", {"style": "model"}, "reward_model.style 'model' is not graded here"),
        ("tools", {"style": "countdown", "ground_truth": "24"}, "countdown"),
        (
            "sandbox",
            {"ground_truth": "not tests"},
            "reward_model.ground_truth must be the tests as JSON",
        ),
    ],
)
@pytest.mark.parametrize(("name", "place"), [("train.jsonl", "line 2"), ("train.parquet", "row 1")])
def test_a_row_that_the_environment_refuses_is_reported_with_its_place(
    tmp_path, env, bad, told, name, place
):
    tests = json.dumps({"inputs": ["1", "2"], "outputs": ["1", "2"]})
    right = row("right", truth=tests if env == "sandbox" else "1")
    path = written(tmp_path, [right, dataclasses.replace(right, **bad)], name=name)
    with pytest.raises(
        ConfigError,
        match=(f"{re.escape(str(path))}, {place}: .*{re.escape(told)}.*Correct or remove the row"),
    ):
        loader_for(env, path)
    assert len(loader_for(env, written(tmp_path, [right], name=f"right_{name}")).draw(1)) == 1


# Bad input


def test_no_file_is_refused():
    with pytest.raises(ConfigError, match=r"data.train_files=\[\] names no file"):
        loader()


def test_a_missing_file_is_refused():
    with pytest.raises(
        MissingAssetError,
        match=r"^data.train_files: There is no file .*no_such.parquet to read prompts from",
    ):
        loader("no_such.parquet")


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    (tmp_path / "train.jsonl").symlink_to("train.jsonl")
    with pytest.raises(MissingAssetError, match=r"There is no file .*train\.jsonl"):
        loader(tmp_path / "train.jsonl")


def test_a_file_named_twice_is_refused(files):
    with pytest.raises(ConfigError, match=r"data.train_files names .*train.jsonl more than once"):
        loader(files / "train.jsonl", files / "train.jsonl")


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.parquet"])
def test_an_empty_file_is_refused(tmp_path, name):
    if name.endswith("parquet"):
        parquet.write_table(
            pyarrow.Table.from_pylist(
                [entry.as_columns() | {"extra_info": None} for entry in rows(1)]
            ).slice(0, 0),
            tmp_path / name,
        )
    else:
        (tmp_path / name).write_text("\n")
    with pytest.raises(
        ConfigError, match=f"{name} has no rows. Remove it from the list, or fill it"
    ):
        loader(tmp_path / name)


def test_a_missing_column_is_refused_with_the_existing_ones(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        json.dumps({"data_sources": "a", "prompt": [], "reward_model": {}})
    )
    with pytest.raises(
        ConfigError,
        match=r"has no column 'data_source'. Did you mean 'data_sources'\? It has: data_sources, prompt",
    ):
        loader(tmp_path / "train.jsonl")


def test_foreign_columns_are_named_and_not_read(tmp_path, caplog):
    (tmp_path / "train.jsonl").write_text(json.dumps({**rows(1)[0].as_columns(), "embedding": [1]}))
    assert "embedding" not in json.loads(loader(tmp_path / "train.jsonl").draw(1)[0].prompt_row)
    assert "columns that are not read: embedding" in caplog.text


def test_errors_of_held_out_files_name_their_own_key(files, tmp_path):
    right, broken = files / "train.jsonl", tmp_path / "broken.jsonl"
    broken.write_text("no JSON")
    with pytest.raises(ConfigError, match=rf"^data.val_files: {broken}, line 1: not JSON"):
        loader(right, val=[broken])
    with pytest.raises(MissingAssetError, match=r"^data.val_files: There is no file .*none.jsonl"):
        loader(right, val=[tmp_path / "none.jsonl"])
    unanswered = written(
        tmp_path,
        [row("one"), dataclasses.replace(row("two"), ground_truth=None)],
        name="unanswered.jsonl",
    )
    with pytest.raises(
        ConfigError,
        match=rf"^data.val_files: {unanswered}, line 2: reward_model.ground_truth must be text",
    ):
        loader(right, val=[unanswered])


def test_an_invalid_ground_truth_is_refused_with_its_row(tmp_path):
    content = [entry.as_columns() | {"extra_info": None} for entry in rows(3)]
    content[1]["reward_model"]["ground_truth"] = None
    parquet.write_table(pyarrow.Table.from_pylist(content), tmp_path / "train.parquet")
    with pytest.raises(
        ConfigError,
        match=r"^data.train_files: .*train.parquet, row 1: reward_model.ground_truth must be text or a .*, got None",
    ):
        loader(tmp_path / "train.parquet")


def test_sources_of_one_metric_name_are_refused(tmp_path):
    train = written(tmp_path, [row("one", source="open/ai"), row("two", source="open_ai")])
    with pytest.raises(ConfigError, match=r"'open/ai' and 'open_ai' have the same name 'open_ai'"):
        loader(train)
    assert task_name("openai/gsm8k") == "openai_gsm8k"


def test_a_source_that_is_called_as_the_total_has_another_name_in_metrics(tmp_path):
    assert task_name("all") == "all_"
    train = written(tmp_path, [row("one", source="all"), row("two", source="all_")])
    with pytest.raises(ConfigError, match=r"'all' and 'all_' have the same name 'all_'"):
        loader(train)


def test_a_file_that_changes_while_the_run_lasts_stops_it(tmp_path):
    train = written(tmp_path, rows(4))
    stream = loader(train)
    train.write_text(train.read_text().replace("question 002", "question 999"))
    with pytest.raises(
        InvariantError,
        match=r"data.train_files: row 2 of .*train.jsonl differs from the question at the start of the run",
    ):
        stream.draw(4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, r"has seed 3, but this run has 4 \(data.seed, by default"),
        ({"heldout_share": 0.3}, r"trains on 23 prompts, but this run on 1\d: other files"),
    ],
)
def test_a_checkpoint_of_another_stream_is_refused(files, change, named):
    state = loader(files / "train.jsonl").state_dict()
    with pytest.raises(CheckpointError, match=named):
        loader(files / "train.jsonl", **change).load_state_dict(state)


def test_a_checkpoint_of_other_questions_is_refused(files, tmp_path):
    other = written(
        tmp_path,
        [
            dataclasses.replace(entry, prompt=(message("user", f"no {n}"),))
            for n, entry in enumerate(rows())
        ],
    )
    with pytest.raises(CheckpointError, match="trains on 23 prompts, but this run on other 23: "):
        loader(other).load_state_dict(loader(files / "train.jsonl").state_dict())
