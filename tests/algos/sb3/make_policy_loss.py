"""Makes policy_loss.json beside this file, with an update of Stable-Baselines3's PPO itself.

    .venv/bin/python tests/algos/sb3/make_policy_loss.py        # stable-baselines3 2.9.2

A policy without hidden layers acts in three dimensions. The behaviour policy has other weights, so
that some ratios are clipped. The file holds the weights, the buffer, and the gradients of the
update's only optimiser step.
"""

import json
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure

STATE, ACTIONS, STEPS = 4, 3, 16
CLIP_RANGE, ENTROPY_COEF = 0.2, 0.01


class Still(gymnasium.Env):
    """Spaces only: the buffer is filled by hand."""

    observation_space = spaces.Box(-10, 10, (STATE,))
    action_space = spaces.Box(-10, 10, (ACTIONS,))


def main() -> None:
    """Write the update's inputs and gradients."""
    model = PPO(
        "MlpPolicy",
        Still(),
        n_steps=STEPS,
        batch_size=STEPS,
        n_epochs=1,
        clip_range=CLIP_RANGE,
        ent_coef=ENTROPY_COEF,
        vf_coef=0.0,
        max_grad_norm=1e9,
        normalize_advantage=False,
        policy_kwargs={"net_arch": [], "log_std_init": -0.5, "ortho_init": False},
        seed=0,
        device="cpu",
    )
    draw = np.random.default_rng(0)
    policy, buffer = model.policy, model.rollout_buffer
    buffer.reset()
    for _ in range(STEPS):
        state = draw.normal(size=(1, STATE)).round(3).astype(np.float32)
        action = draw.normal(size=(1, ACTIONS)).round(3).astype(np.float32)
        with torch.no_grad():
            _, log_prob, _ = policy.evaluate_actions(torch.tensor(state), torch.tensor(action))
        behaved = log_prob + float(draw.normal(scale=0.3))
        buffer.add(state, action, np.zeros(1), np.zeros(1), torch.zeros(1), behaved)
    buffer.advantages[:] = draw.normal(size=(STEPS, 1)).round(3)
    content = {
        "clip_range": CLIP_RANGE,
        "entropy_coef": ENTROPY_COEF,
        "weight": policy.action_net.weight.tolist(),
        "bias": policy.action_net.bias.tolist(),
        "log_std": policy.log_std.tolist(),
        "states": buffer.observations[:, 0].tolist(),
        "actions": buffer.actions[:, 0].tolist(),
        "old_log_probs": buffer.log_probs[:, 0].tolist(),
        "advantages": buffer.advantages[:, 0].tolist(),
    }

    def keep_gradients(*_: object) -> None:
        content["gradients"] = {
            "weight": policy.action_net.weight.grad.tolist(),
            "bias": policy.action_net.bias.grad.tolist(),
            "log_std": policy.log_std.grad.tolist(),
        }

    policy.optimizer.register_step_pre_hook(keep_gradients)
    model.set_logger(configure(None, []))
    model.train()
    content["clip_fraction"] = float(model.logger.name_to_value["train/clip_fraction"])
    (Path(__file__).parent / "policy_loss.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
