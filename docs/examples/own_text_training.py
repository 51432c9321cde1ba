"""GRPO on sums in your own script: no graph, no configuration file, the same engines.

    python -m own_text_training

An episode of this script's own workflow is a whole group: eight answers to one question. A group in
which all are right or all are wrong gives no signal: the workflow rejects it, and `prepare_batch`
plays another one.
"""

# B rollout, T token

import asyncio
import itertools

import torch

from siirl.user_interface import own_loop as rl

MODEL, TASK, ANSWERS = "assets/tiny_lm", "sums-2", 8


class MixedGroup(rl.RolloutWorkflow):
    """`ANSWERS` answers to question number `data`; None (rejected) if all of them get the same
    reward.
    """

    def __init__(self, one: rl.TextWorkflow) -> None:
        self.one = one

    async def arun_episode(self, engine: rl.TextEngine, data: int) -> list[rl.Trajectory] | None:
        seed = rl.training_seed(run_seed=0, number=data)
        common = {"group_id": data, "task": TASK, "task_id": 0, "trial_id": data, "seed": seed}
        requests = [
            rl.EpisodeRequest(uid=f"{data}-{i}", policy_seed=(0, data, i), **common)
            for i in range(ANSWERS)
        ]
        episodes = [self.one.arun_episode(engine, request) for request in requests]
        answers = await asyncio.gather(*episodes)
        group = list(itertools.chain(*answers))
        return group if len({trajectory.row["env_return"] for trajectory in group}) > 1 else None


def main(steps: int = 40, questions: int = 16) -> None:
    """Train for `steps` steps on `questions` groups each."""
    torch.set_num_threads(1)
    model, tokenizer = rl.load_language_model(MODEL), rl.load_chat_tokenizer(MODEL)
    pool = rl.EnvPool("math", {"tasks": [TASK]}, envs_per_server=64)
    workflow = MixedGroup(
        rl.TextWorkflow(pool=pool, tokenizer=tokenizer, max_prompt_length=16, max_response_length=8)
    )
    optimizer = rl.OptimizerArguments(lr=2e-4, scheduler="constant_with_warmup", warmup_steps=5)
    engine = rl.text_train_engine(model, optim=optimizer, micro_batch_size=64)
    config = rl.ActorArguments(ppo_mini_batch_size=questions)
    actor = rl.Actor(engine=engine, config=config, rollouts_per_prompt=ANSWERS)
    numbers = itertools.count()
    with rl.InferenceEngine(rl.HFEngine(model=model, tokenizer=tokenizer), pool=pool) as inference:
        for step in range(1, steps + 1):
            result = inference.prepare_batch(numbers, workflow, count=questions)
            if not result.trajectories:
                raise SystemExit("Each group was all right or all wrong: nothing to learn here.")
            batch = result.batch()
            advantages_B = rl.grpo_advantage(rewards_B=batch["env_return"], group_B=batch["index"])
            batch["advantages"] = advantages_B[:, None] * batch["response_mask"]
            gap = actor.update(batch)["rollout/log_prob_gap"]
            inference.update_weights(step).result()
            right, asked = batch["env_return"].mean(), questions + len(result.rejected)
            print(
                f"step {step}: {asked} questions for {questions} mixed groups, of which "
                f"{right:.0%} right; log-prob gap {gap:.1e}"
            )


if __name__ == "__main__":
    main()
