"""GRPO on sums in a script of one's own: no graph, no configuration file, the same engines.

    python -m docs.examples.own_text_training

An episode of this script's own workflow is a whole group: eight answers to one question. A group in which all are right or all are wrong
teaches nothing: the workflow throws it away, and `prepare_batch` plays another one for it.
"""

# B rollout, T token

import asyncio
import itertools

import torch

from siirl.algos.advantages import grpo_advantage
from siirl.data_coordinator.loader import training_seed
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.collectives import OneProcess
from siirl.engine.rollout.generation import TextEngine
from siirl.engine.rollout.hf_engine import HFEngine
from siirl.engine.rollout.inference_engine import InferenceEngine
from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow, Trajectory
from siirl.engine.train_engine import TrainEngine
from siirl.env_server.pool import EnvPool
from siirl.models.chat import load_chat_tokenizer
from siirl.models.language_model import load_language_model
from siirl.params import ActorArguments, OptimizerArguments

MODEL, TASK, ANSWERS = "assets/tiny_lm", "sums-2", 8


class MixedGroup(RolloutWorkflow):
    """`ANSWERS` answers to question number `data`; None, which stands for "rejected", where all of them get the same reward."""

    def __init__(self, one: TextWorkflow) -> None:
        self.one = one

    async def arun_episode(self, engine: TextEngine, data: int) -> list[Trajectory] | None:
        seed = training_seed(run_seed=0, number=data)
        requests = [
            EpisodeRequest(uid=f"{data}-{i}", group_id=data, task=TASK, task_id=0, trial_id=data, seed=seed, policy_seed=(0, data, i))
            for i in range(ANSWERS)
        ]
        answers = await asyncio.gather(*(self.one.arun_episode(engine, request) for request in requests))
        group = list(itertools.chain(*answers))
        return group if len({trajectory.row["env_return"] for trajectory in group}) > 1 else None


def main(steps: int = 40, questions: int = 16) -> None:
    """Train for `steps` steps on `questions` groups each."""
    torch.set_num_threads(1)
    model, tokenizer = load_language_model(MODEL), load_chat_tokenizer(MODEL)
    pool = EnvPool("math", {"tasks": [TASK]}, num_servers=1, envs_per_server=64, cluster="local", deadline_s=60)
    acting = HFEngine(model=model, tokenizer=tokenizer, temperature=1.0, max_running=64, lockstep=False)
    optimizer = OptimizerArguments(lr=2e-4, scheduler="constant_with_warmup", warmup_steps=5)
    engine = TrainEngine(
        module=model, scorer=text_scorer, ranks=OneProcess(), optim=optimizer, total_steps=None, micro_batch_size=64, temperature=1.0
    ).initialize()
    actor = Actor(engine=engine, config=ActorArguments(ppo_mini_batch_size=questions), rollouts_per_prompt=ANSWERS, seed=0)
    workflow = MixedGroup(TextWorkflow(pool=pool, tokenizer=tokenizer, max_prompt_length=16, max_response_length=8))
    numbers = itertools.count()
    with InferenceEngine(acting, pool=pool) as inference:
        for step in range(1, steps + 1):
            result = inference.prepare_batch(numbers, workflow, count=questions)
            if not result.trajectories:
                raise SystemExit(f"Of {len(result.rejected)} groups each was all right or all wrong: there is nothing to learn here.")
            batch = Samples2Dict([Sample(trajectory.row) for trajectory in result.trajectories])
            advantages_B = grpo_advantage(rewards_B=batch["env_return"], group_B=batch["index"])
            batch["advantages"] = advantages_B[:, None] * batch["response_mask"]
            gap = actor.update(batch)["rollout/log_prob_gap"]
            inference.update_weights(step).result()
            right, asked = batch["env_return"].mean(), questions + len(result.rejected)
            print(f"step {step}: {asked} questions for {questions} mixed groups, of which {right:.0%} right; log-prob gap {gap:.1e}")


if __name__ == "__main__":
    main()
