"""Rows that no environment can grade train with a user's reward function, and the other
rows are graded.
"""

import contextlib
import io
import json
from pathlib import Path
from statistics import mean

import pyarrow
import pytest
import torch
from pyarrow import parquet

from siirl.evaluate import main as evaluate
from siirl.files.paths import find
from siirl.report import main as report
from siirl.reporting.rollout_files import read_rollouts
from siirl.terminal.exit_status import REFUSED
from siirl.train import main

JOB = (
    "env=math", "pipeline=grpo", "cluster=local", "data.train_batch_size=8", "data.max_response_length=6", "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.optim.warmup_steps=0", "env.envs_per_server=16",
    "trainer.total_steps=1", "trainer.max_minutes=null", "trainer.deterministic=true", "trainer.threads_per_rank=1",
    "trainer.val_episodes=4", "trainer.val_before_train=true", "trainer.save_rollouts=64", "data.heldout_share=0.5",
)  # fmt: skip
KINDS = ("argmax", "sampled")
REWARDS = """
def even(data_source, solution_str, ground_truth, extra_info):
    assert (ground_truth is None) == (data_source == "judged")
    return float(solution_str.endswith(("0", "2", "4", "6", "8")))
"""


def rows() -> list[dict]:
    """Sums that are graded, and as many that want a judge."""
    graded = {"data_source": "sums", "reward_model": {"style": "whole", "ground_truth": "0"}}
    judged = {"data_source": "judged", "reward_model": {"style": "model", "ground_truth": None}}
    return [
        kind | {"prompt": [{"role": "user", "content": f"{number}+{shift}="}]}
        for number in range(10, 50)
        for shift, kind in ((11, graded), (22, judged))
    ]


def write_files(folder: Path) -> list[str]:
    parquet.write_table(pyarrow.Table.from_pylist(rows()), folder / "rows.parquet")
    (folder / "rewards.py").write_text(REWARDS)
    return [
        f"data.train_files=[{folder / 'rows.parquet'}]",
        f"trainer.output_dir={folder / 'out'}",
    ]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return write_files(tmp_path)


def own_reward(tmp_path: Path) -> list[str]:
    return [
        f"custom_reward_function.path={tmp_path / 'rewards.py'}",
        "custom_reward_function.name=even",
    ]


def test_without_a_users_reward_they_are_refused_with_key_file_and_row(files, capsys) -> None:
    assert main([*JOB, *files]) == REFUSED
    said = capsys.readouterr().err
    assert "data.train_files: " in said
    assert "rows.parquet, row 1: reward_model.style 'model' is not graded here" in said


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run with a user's reward, and what the run printed."""
    place = tmp_path_factory.mktemp("trained")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([*JOB, *write_files(place), *own_reward(place)]) == 0
    (folder,) = (place / "out").glob("*/*")
    return folder, " ".join(printed.getvalue().split())


def metrics_of(folder: Path) -> list[dict]:
    """Metrics before the first step, and of the step."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_with_a_users_reward_both_kinds_of_rows_are_trained_on(trained) -> None:
    folder, printed = trained
    assert (
        "grades includes rows that the environment cannot grade (no ground truth, or a style that "
        "needs a judge)" in printed
    )
    rollouts = list(read_rollouts(folder / "rollouts", kind="train"))
    assert len(rollouts) == 8 * 4
    assert {row["reward"] for row in rollouts if row["task"] == "judged"} == {0.0, 1.0}
    step = metrics_of(folder)[1]
    assert step["reward/mean_score"] == pytest.approx(mean(row["reward"] for row in rollouts))
    assert (step["reward/failed"], step["actor/updates"]) == (0.0, 1.0)


def test_success_and_return_are_those_of_rows_that_can_be_graded(trained) -> None:
    """Both are absent for the others, not 0."""
    folder, _ = trained
    before, step = metrics_of(folder)
    rollouts = list(read_rollouts(folder / "rollouts", kind="train"))
    judged, graded = (
        [row for row in rollouts if row["task"] == source] for source in ("judged", "sums")
    )
    assert {(row["success"], row["env_return"], row["verdict"]) for row in judged} == {
        (None, None, "not graded")
    }
    assert step["rollout/ungraded_episodes"] == len(judged) > 0
    assert (
        step["rollout/success_rate"]
        == step["rollout/sums/success_rate"]
        == mean(row["success"] for row in graded)
    )
    assert step["rollout/return"] == mean(row["env_return"] for row in graded)
    assert "rollout/judged/success_rate" not in step
    assert (
        before["val/all/episodes"],
        before["val/sums/episodes"],
        before["val/judged/ungraded_episodes"],
    ) == (4.0, 4.0, 4.0)
    of_reward = ("ungraded_episodes", "scored_episodes", "mean_score", "score_std")
    assert not [
        name
        for name in (*before, *step)
        if name.startswith("val/judged/") and not name.endswith(of_reward)
    ]


def test_an_evaluation_scores_ungraded_rows_by_the_reward_and_no_others(trained) -> None:
    folder, _ = trained
    step = metrics_of(folder)[1]
    held_out = list(read_rollouts(folder / "rollouts", kind="val", step=1))
    assert {row["reward"] for row in held_out if row["task"] == "sums"} == {None}
    greedy, sampled = (
        [row["reward"] for row in held_out if kind in row["uid"] and row["task"] == "judged"]
        for kind in KINDS
    )
    for source in ("judged", "all"):
        assert step[f"val/{source}/mean_score"] == pytest.approx(mean(sampled))
        assert step[f"val/{source}/argmax_mean_score"] == pytest.approx(mean(greedy))
        assert step[f"val/{source}/scored_episodes"] == len(sampled) == 4
    assert "val/sums/scored_episodes" not in step


def test_a_report_calls_such_rollouts_ungraded_and_not_failures(trained, capsys) -> None:
    folder, _ = trained
    rollouts = read_rollouts(folder / "rollouts", kind="train")
    judged = sum(row["task"] == "judged" for row in rollouts)
    assert report([str(folder), "--rollouts", "--kind", "train", "--count", "64"]) == 0
    assert capsys.readouterr().out.count(": ungraded, reward ") == judged
    assert (
        report([str(folder), "--rollouts", "--failures", "--kind", "train", "--count", "64"]) == 0
    )
    assert "ungraded" not in capsys.readouterr().out


def test_where_none_can_be_graded_a_run_has_no_success_at_all(
    files, tmp_path: Path, capsys
) -> None:
    parquet.write_table(
        pyarrow.Table.from_pylist([row for row in rows() if row["data_source"] == "judged"]),
        tmp_path / "rows.parquet",
    )
    assert main([*JOB, *files, *own_reward(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "held out, all: mean reward " in said
    assert "mean reward of the same held-out episodes before and after, 95 % intervals" in said
    assert "success on the same held-out episodes" not in said
    (folder,) = (tmp_path / "out").glob("*/*")
    step = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert step["rollout/ungraded_episodes"] == 8 * 4
    assert not [name for name in step if "success" in name or name.endswith("return")]
    assert "<h3>Mean reward of held-out episodes</h3>" in (
        page := (folder / "report.html").read_text()
    )
    assert "<h3>Success on held-out episodes</h3>" not in page


def reward_model(tmp_path: Path) -> list[str]:
    """A sequence classifier of a few hundred random weights, which nevertheless scores answers
    differently.
    """
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(str(find("assets/tiny_lm")))
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    torch.manual_seed(0)
    model = Qwen2ForSequenceClassification(
        Qwen2Config(vocab_size=len(tokenizer), num_labels=1, pad_token_id=256, **sizes)
    )
    model.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    return ["reward.name=model", f"reward_model.path={tmp_path / 'judge'}"]


@pytest.mark.parametrize(("reward", "name"), [(own_reward, "even"), (reward_model, "model")])
def test_an_evaluation_of_a_run_reports_the_reward_of_its_own_validation(
    files, tmp_path: Path, capsys, reward, name: str
) -> None:
    """The run's folder says how it was rewarded; the weights and the questions are those of its
    last step.
    """
    parquet.write_table(
        pyarrow.Table.from_pylist([row for row in rows() if row["data_source"] == "judged"]),
        tmp_path / "rows.parquet",
    )
    assert main([*JOB, *files, *reward(tmp_path)]) == 0
    (folder,) = (tmp_path / "out").glob("*/*")
    step = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    capsys.readouterr()
    assert evaluate((f"checkpoint={folder}", f"trainer.output_dir={tmp_path / 'evaluations'}")) == 0
    (file,) = (tmp_path / "evaluations").glob("evaluation/*/evaluation.json")
    found = json.loads(file.read_text())
    assert (found["success"], found["return"]) == (
        {"sampled": {}, "argmax": {}},
        {"sampled": {}, "argmax": {}},
    )
    for source in ("judged", "all"):
        for kind, prefix in (("sampled", ""), ("argmax", "argmax_")):
            assert found["reward"][kind][source]["mean"] == pytest.approx(
                step[f"val/{source}/{prefix}mean_score"], abs=1e-6
            )
            assert found["reward"][kind][source]["episodes"] == 4
    said = " ".join(capsys.readouterr().out.split())
    assert f"mean reward ({name}) of held-out episodes without a grade, 95 % intervals" in said
    assert said.count("(n=4)") == 4
    assert "mean return" not in said
