"""GRPO with one controlling process and engines in separate processes: no graph.

    python -m own_single_controller

Two processes answer questions, each with a copy of the model; two others train it, each with half
of the weights. A batch is answered while training uses the previous one, so its answers are one
version behind, and the ratio to the policy that acted is clipped.
"""

# B answer, T token

import itertools

from own_sums import MODEL, QUESTIONS, Sums, make_actor

from siirl.user_interface import own_loop as rl
from siirl.user_interface.controllers import RolloutController, TrainController, processes


def make_rollout() -> rl.InferenceEngine:
    """The engine of a rollout process."""
    model, tokenizer = rl.load_language_model(MODEL), rl.load_chat_tokenizer(MODEL)
    return rl.InferenceEngine(rl.HFEngine(model=model, tokenizer=tokenizer))


def main(steps: int = 40, size: int = 2) -> None:
    """Train for `steps` steps with `size` processes of each kind."""
    workflow, numbers = Sums(rl.load_chat_tokenizer(MODEL)), itertools.count()
    with (
        processes(),
        RolloutController(make_rollout, processes=size) as rollout,
        TrainController(make_actor, processes=size) as actor,
    ):
        rollout.update_weights(actor.upload_weights()).result()
        for step in range(1, steps + 1):
            batch = rollout.prepare_batch(numbers, workflow, count=QUESTIONS).batch()
            advantages_B = rl.grpo_advantage(rewards_B=batch["env_return"], group_B=batch["index"])
            batch["advantages"] = advantages_B[:, None] * batch["response_mask"]
            metrics = actor.update(batch)
            rollout.update_weights(actor.upload_weights())
            right, version = batch["env_return"].mean(), int(batch["policy_version"].min())
            print(
                f"step {step}: {right:.0%} right, by version {version}; "
                f"grad norm {metrics['actor/grad_norm']:.2f}"
            )


if __name__ == "__main__":
    main()
