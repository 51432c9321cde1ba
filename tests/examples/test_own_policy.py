"""The examples of a user's policy, flow and distribution run as their docstrings say."""

import json

import pytest
import torch
from own_distribution import Laplace

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.evaluate import main as evaluate
from siirl.export import main as export
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph
from siirl.preflight.needed_files import file_problems
from siirl.train import main as train

COMMAND = (
    "env=gymnasium", "cluster=local", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_epochs=1",
    "trainer.total_steps=2", "trainer.max_minutes=null", "trainer.val_episodes=0", "trainer.record_episodes=0",
)  # fmt: skip
PENDULUM = ("env.id=Pendulum-v1", "env.max_episode_steps=8")
POLICY = "actor_rollout_ref.model.policy"
OPTIONS = "actor_rollout_ref.model.options"
REFUSED = 2


def problems(*words: str) -> list[str]:
    return [str(problem) for problem in file_problems(parse_config(list(words)))]


@pytest.mark.parametrize(
    "words",
    [
        (
            "pipeline=grpo",
            "env.id=CartPole-v1",
            f"{POLICY}=own_policy:make_policy",
            f"{OPTIONS}={{width: 32}}",
        ),
        (
            "pipeline=grpo",
            *PENDULUM,
            f"{POLICY}=own_flow_policy:make_policy",
            f"{OPTIONS}={{steps: 4}}",
        ),
        ("pipeline=grpo", *PENDULUM, f"{POLICY}=own_distribution:make_policy"),
        ("pipeline=ppo", *PENDULUM, f"{POLICY}=own_distribution:make_policy"),
    ],
    ids=["tokens", "flow", "distribution", "critic"],
)
def test_a_users_policy_is_trained(tmp_path, words):
    config = parse_config([*COMMAND, *words])
    worker = DAGWorker(
        config=config,
        graph=load_graph(config),
        rank=0,
        world_size=1,
        init_method="",
        backend="gloo",
        run_folder=tmp_path,
    )
    steps = [event for event in worker.run() if isinstance(event, StepDone)]
    assert [step.metrics["actor/updates"] for step in steps] == [1.0, 1.0]
    assert all(step.metrics["rollout/log_prob_gap_mean"] < 1e-4 for step in steps)


def test_the_weights_of_a_users_policy_are_evaluated_and_passed_to_its_function(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ("env.id=CartPole-v1", f"{POLICY}=own_policy:make_policy", f"{OPTIONS}={{width: 32}}")
    assert train([*COMMAND, "pipeline=grpo", *words]) == 0
    (manifest,) = tmp_path.glob("outputs/*/*/checkpoints/*/manifest.json")
    actor, run = manifest.parent / "actor", manifest.parents[2]
    few = ("trainer.val_episodes=2", "trainer.record_val_episodes=0", "cluster=local")
    assert evaluate([f"checkpoint={run}", *few]) == 0
    assert evaluate([f"checkpoint={actor}", "env=gymnasium", *words, *few]) == 0
    of_run, of_folder = (
        json.loads(file.read_text())["return"]
        for file in sorted(tmp_path.glob("outputs/evaluation/*/evaluation.json"))
    )
    assert of_run == of_folder
    assert not problems(*COMMAND, "pipeline=grpo", *words, f"actor_rollout_ref.model.path={actor}")
    (missing,) = problems(*COMMAND, "pipeline=grpo", *words, "actor_rollout_ref.model.path=nowhere")
    assert "there is no nowhere; give what your function reads" in missing
    capsys.readouterr()
    assert export([str(run), "--output", "shared"]) == REFUSED
    assert "nothing but your function reads its weights" in capsys.readouterr().err


def test_the_examples_distribution_is_torchs_laplace():
    mean, log_scale = torch.tensor([[0.2, -1.0]]), torch.tensor([-0.5, 0.3])
    theirs, ours = torch.distributions.Laplace(mean, log_scale.exp()), Laplace(mean, log_scale)
    numbers = torch.tensor([[0.1, 0.9]])
    torch.testing.assert_close(ours.sample(numbers), theirs.icdf(numbers))
    torch.testing.assert_close(ours.log_prob(numbers), theirs.log_prob(numbers))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
