"""Section 4.2 of the architecture guide, copied beside this file: its four pipelines, which have no
sync node, train three steps as written on two ranks, each of which acts with a copy of the weights.
"""

import re
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph
from tests.engine.ranks_at_work import work_on_ranks

GUIDE = Path(__file__).with_name("architecture_guide_4_2.rst").read_text()
IMPORTS = """
from siirl.execution.dag.pipeline import Pipeline
from siirl.execution.dag.node import NodeType, NodeRole
from siirl.execution.dag.task_graph import TaskGraph

"""
RANKS, STEPS = 2, 3
SMALL = (
    "env=gymnasium", "env.id=CartPole-v1", "cluster=local", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.ppo_epochs=1", "actor_rollout_ref.actor.optim.lr=1e-2",
    "env.num_servers=2", "env.envs_per_server=3", "env.max_episode_steps=11", "trainer.val_episodes=0", "trainer.record_episodes=0",
    f"trainer.total_steps={STEPS}", "trainer.max_minutes=null", "trainer.save_freq=-1", f"trainer.n_gpus_per_node={RANKS}",
    "actor_rollout_ref.model.options={chunk_length: 1, width: 16}", "reward=return",
)  # fmt: skip
PIPELINES = ("grpo", "ppo", "dapo", "embodied_srpo")


def snippets() -> list[str]:
    """The section's code blocks, without their margin."""
    blocks = re.findall(r"\.\. code-block:: python\n(?:   :.*\n)*\n((?:   .*\n|\s*\n)+)", GUIDE)
    return [textwrap.dedent(block) for block in blocks]


def work(rank: int, folder: str) -> None:
    """One rank's run of the four pipelines; its reports are written to a file."""
    torch.set_num_threads(1)
    sys.path.insert(0, folder)
    reported = {}
    for name in PIPELINES:
        own = f"dag.custom_pipeline_fn=pipelines_of_the_guide:{name}_pipeline"
        config = parse_config([*SMALL, f"pipeline={name}", own])
        run_folder = Path(folder) / name
        run_folder.mkdir(exist_ok=True)
        worker = DAGWorker(
            config=config,
            graph=load_graph(config),
            rank=rank,
            world_size=RANKS,
            init_method=f"file://{folder}/rendezvous_{name}",
            backend="gloo",
            run_folder=run_folder,
        )
        reported[name] = [event.metrics for event in worker.run() if isinstance(event, StepDone)]
    torch.save(reported, Path(folder) / f"reported_{rank}")


@pytest.fixture(scope="module")
def reported():
    with tempfile.TemporaryDirectory() as folder:
        module = IMPORTS + "\n\n".join(snippets())
        (Path(folder) / "pipelines_of_the_guide.py").write_text(module)
        processes = work_on_ranks(work, (folder,), ranks=RANKS)
        assert [process.exitcode for process in processes] == [0] * RANKS
        yield torch.load(Path(folder) / "reported_0")


def test_the_section_has_four_pipelines() -> None:
    names = [re.match(r"def (\w+)_pipeline\(\)", snippet)[1] for snippet in snippets()]
    assert tuple(names) == PIPELINES


@pytest.mark.slow  # two processes that each import everything and take twelve training steps
@pytest.mark.parametrize("name", PIPELINES)
def test_it_trains_more_than_two_steps(reported, name: str) -> None:
    steps = reported[name]
    updates = [step["actor/updates"] for step in steps]
    assert len(steps) == STEPS
    assert sum(updates) > 0
    # each step acts with the weights of the update before it
    totals = [sum(updates[: number + 1]) for number in range(STEPS)]
    assert [step["policy/version"] for step in steps] == totals
