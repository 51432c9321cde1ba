"""Questions, rewards and the trained model of two scripts without a graph.

`own_single_controller.py` and `own_spmd_training.py` assign the work to processes differently.
"""

import asyncio
import random

from siirl.user_interface import own_loop as rl

MODEL, ANSWERS, QUESTIONS = "assets/tiny_lm", 8, 16


class Sums(rl.RolloutWorkflow):
    """`ANSWERS` answers to question number `data`, scored here."""

    def __init__(self, tokenizer: rl.ChatTokenizer) -> None:
        self.tokenizer = tokenizer

    async def arun_episode(self, engine: rl.TextEngine, data: int) -> list[rl.Trajectory]:
        draw = random.Random(data)
        a, b = draw.randint(10, 99), draw.randint(10, 99)
        prompt = self.tokenizer.encode_prompt([{"role": "user", "content": f"{a}+{b}="}])
        requests = [
            rl.GenerationRequest(f"{data}-{i}", prompt, max_new_tokens=8, seed=(data, i))
            for i in range(ANSWERS)
        ]
        responses = await asyncio.gather(*map(engine.agenerate, requests))
        return [
            rl.single_turn(request, response, group_id=data, reward=self.reward(response, a + b))
            for request, response in zip(requests, responses, strict=True)
        ]

    def reward(self, response: rl.GenerationResponse, truth: int) -> float:
        """1 for the right answer."""
        return float(self.tokenizer.decode(response.tokens) == str(truth))


def make_actor(ranks: rl.Collectives) -> rl.Actor:
    """The actor of a training process, whose engine shards the model over `ranks`."""
    optimizer = rl.OptimizerArguments(lr=2e-4, scheduler="constant_with_warmup", warmup_steps=5)
    model = rl.load_language_model(MODEL)
    engine = rl.text_train_engine(model, optim=optimizer, ranks=ranks, micro_batch_size=64)
    config = rl.ActorArguments(ppo_mini_batch_size=QUESTIONS)
    return rl.Actor(engine=engine, config=config, rollouts_per_prompt=ANSWERS)
