"""GRPO as one program on every rank, as torchrun starts it: no graph, no controller, no Ray.

    torchrun --standalone --nproc-per-node=2 -m own_spmd_training

Each rank asks its own questions and trains on its own answers. The engine shards the model and
counts denominators over all ranks, so the gradient is that of one process with all rows.
"""

# B answer of this rank, T token

import itertools
import sys

import torch
from own_sums import ANSWERS, MODEL, QUESTIONS, Sums, make_actor
from torch import distributed

from siirl.user_interface import own_loop as rl


def main(steps: int = 40) -> None:
    """Train for `steps` steps on all ranks."""
    distributed.init_process_group("gloo")  # on GPUs "nccl", with each part's `device`
    torch.set_num_threads(1)
    ranks = rl.GroupOfProcesses()
    train(ranks, steps)
    rl.leave(ranks)


def train(ranks: rl.GroupOfProcesses, steps: int) -> None:
    """The part of one rank."""
    actor, tokenizer = make_actor(ranks), rl.load_chat_tokenizer(MODEL)
    acting = rl.load_language_model(MODEL)  # whole, where the trained one is sharded
    generator = rl.HFEngine(model=acting, tokenizer=tokenizer)
    weights = rl.WeightSync(trained=actor.engine, acting=acting, engine=generator, ranks=ranks)
    numbers = itertools.count(ranks.rank, ranks.size)
    with rl.InferenceEngine(generator) as rollout:
        for step in range(1, steps + 1):
            questions = list(itertools.islice(numbers, QUESTIONS // ranks.size))
            batch = rollout.rollout_batch(questions, Sums(tokenizer)).batch()
            advantages_B = rl.grpo_advantage(rewards_B=batch["env_return"], group_B=batch["index"])
            batch["advantages"] = advantages_B[:, None] * batch["response_mask"]
            gap = actor.update(batch)["rollout/log_prob_gap"]
            weights.sync()
            right = ranks.sum(batch["env_return"].sum()) / (QUESTIONS * ANSWERS)
            if ranks.rank == 0:
                print(f"step {step}: {right:.0%} right; log-prob gap {gap:.1e}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
