"""Section 11 of the architecture guide, copied beside this file: its snippets train two steps as
they are written, imports included.

The guide leaves three things to its reader, and so does this test: `torch`, `np` and
`my_scoring_function`, which the snippets use and do not import, are put in front of a module; and
the right-hand sides that are `...` are filled in. The lines of the guide stay as they are.
"""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from siirl.reporting.jsonl import read_rows

GUIDE = Path(__file__).with_name("architecture_guide_11.rst").read_text()
PREAMBLE = "import numpy as np\nimport torch\nfrom my_module.scoring import my_scoring_function\n\n"
SCORING = "def my_scoring_function(prompt, response):\n    return int(response.sum()) % 2\n"
LEFT_OPEN = {
    "advantages": "(token_level_rewards.sum(-1, keepdim=True) - 0.5) * response_mask",
    "returns": "advantages",
    "pg_loss": "-((log_prob - old_log_prob).exp() * advantages * response_mask).sum() / response_mask.sum()",
    "pg_clipfrac": "torch.zeros(())",
    "ppo_kl": "((old_log_prob - log_prob) * response_mask).sum() / response_mask.sum()",
    "pg_clipfrac_lower": "0.0",
}
SMALL = (
    "env=math", "cluster=local", "data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4", "data.max_response_length=16", "trainer.total_steps=2", "trainer.max_minutes=null",
    "trainer.val_episodes=0", "trainer.logger=[]", "trainer.save_freq=-1",
)  # fmt: skip


def snippets(language: str) -> list[str]:
    """The guide's code blocks, without their margin."""
    blocks = re.findall(
        rf"\.\. code-block:: {language}\n(?:   :.*\n)*\n((?:   .*\n|\s*\n)+)", GUIDE
    )
    return [textwrap.dedent(block) for block in blocks]


def filled_in(snippet: str) -> str:
    """The snippet with something in place of each `name = ...`."""
    return re.sub(
        r"^( +)(\w+) = \.\.\.$",
        lambda found: f"{found[1]}{found[2]} = {LEFT_OPEN[found[2]]}",
        snippet,
        flags=re.MULTILINE,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder in which a reader of the guide types the command, with the modules that it names."""
    pipeline, reward, advantage, loss = snippets("python")
    package = tmp_path / "my_module"
    package.mkdir()
    files = {
        "__init__": "",
        "custom_pipeline": pipeline,
        "custom_reward": PREAMBLE + reward,
        "scoring": SCORING,
    }
    files |= {"advantage": PREAMBLE + filled_in(advantage), "loss": PREAMBLE + filled_in(loss)}
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    (tmp_path / "config.yaml").write_text(snippets("yaml")[0])
    return tmp_path


def train(folder: Path, *words: str) -> list[dict]:
    """The rows of metrics.jsonl of `python -m siirl.train`."""
    command = [sys.executable, "-m", "siirl.train", *SMALL, *words]
    done = subprocess.run(
        command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (run,) = (folder / "outputs").glob("*/*")
    return list(read_rows(run / "metrics.jsonl"))


def test_the_guide_has_four_snippets_of_python_and_one_of_configuration() -> None:
    assert [len(snippets(language)) for language in ("python", "yaml")] == [4, 1]
    assert sum(snippet.count(" = ...\n") for snippet in snippets("python")) == len(LEFT_OPEN)


def test_its_pipeline_and_its_reward_train(folder: Path) -> None:
    rows = train(folder, "--config", "config.yaml")
    assert [row["actor/updates"] for row in rows] == [1.0, 1.0]
    # what the snippet logs: np.mean of scores that are 0 or 1
    assert all(0 < row["reward/mean_score"] < 1 for row in rows)


@pytest.mark.parametrize(
    ("estimator", "loss"),
    [
        ("my_custom_adv", "my_custom_loss"),
        (
            "my_module.advantage:compute_my_custom_advantage",
            "my_module.loss:compute_my_custom_policy_loss",
        ),
    ],
    ids=["names", "references"],
)
def test_its_advantage_and_its_loss_train_by_name_and_as_a_reference(
    folder: Path, estimator: str, loss: str
) -> None:
    rows = train(
        folder,
        "pipeline=grpo",
        "user_modules=[my_module.loss,my_module.advantage]",
        f"algorithm.adv_estimator={estimator}",
        f"actor_rollout_ref.actor.loss={loss}",
    )
    assert [row["advantage/abs_mean"] for row in rows] == [0.5, 0.5]  # of rewards that are 0 or 1
    assert [row["actor/updates"] for row in rows] == [1.0, 1.0]
    assert all(row["actor/pg_clipfrac"] == 0.0 and row["actor/grad_norm"] > 0 for row in rows)
