"""Proximal policy optimisation in one file, in the manner of CleanRL, with its environments in
siirl's servers.

    python cleanrl_ppo_on_pool.py --id CartPole-v1
    python cleanrl_ppo_on_pool.py --cluster local --total-steps 20000

`train` takes any `gymnasium.vector.VectorEnv` with `NEXT_STEP` autoreset, a vector observation and
discrete actions. Left out: images, continuous actions, checkpoints.

PPO: Schulman et al. 2017, arXiv 1707.06347. Names: T step of the rollout, E environment, B sample
of a mini-batch.
"""

import argparse
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor, nn

from siirl.env_server.pool import EnvPool
from siirl.env_server.vector_env import PoolVectorEnv


@dataclass(frozen=True)
class Settings:
    """PPO's settings; the values are CleanRL's for CartPole."""

    total_steps: int = 60_000
    rollout_steps: int = 128
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    epochs: int = 4
    clip_ratio: float = 0.2
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    seed: int = 1


class ActorCritic(nn.Module):
    """Two small networks: logits of the actions, and the value of the state."""

    def __init__(self, observation_size: int, num_actions: int) -> None:
        super().__init__()
        self.actor = _network(observation_size, num_actions, last_gain=0.01)
        self.critic = _network(observation_size, 1, last_gain=1.0)

    def forward(self, observations_BO: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        """Distribution over actions and value [B]."""
        return torch.distributions.Categorical(logits=self.actor(observations_BO)), self.critic(
            observations_BO
        ).squeeze(-1)


@dataclass
class Rollout:
    """Tensors [T, E] of one rollout; observations [T, E, O]."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    ended: Tensor
    """Whether the episode had ended before this step: then the step only reset the environment and
    is no sample.
    """
    values: Tensor


def train(
    envs: gymnasium.vector.VectorEnv,
    settings: Settings,
    report: Callable[[int, float, float], None],
) -> list[float]:
    """Train an `ActorCritic` on `envs`; returns the returns of all episodes, in the order in which
    they ended.
    """
    torch.manual_seed(settings.seed)
    envs = RecordEpisodeStatistics(envs)
    assert isinstance(envs.single_action_space, gymnasium.spaces.Discrete)
    policy = ActorCritic(
        int(np.prod(envs.single_observation_space.shape or ())), int(envs.single_action_space.n)
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate, eps=1e-5)
    episode_returns: list[float] = []
    recent: deque[float] = deque(maxlen=20)
    observation_EO = torch.as_tensor(envs.reset(seed=settings.seed)[0])
    ended_E = torch.zeros(envs.num_envs)
    num_updates = settings.total_steps // (settings.rollout_steps * envs.num_envs)
    started = time.perf_counter()
    for update in range(num_updates):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1.0 - update / num_updates)
        rollout, observation_EO, ended_E, finished = collect(
            envs, policy, observation_EO, ended_E, settings.rollout_steps
        )
        episode_returns += finished
        recent.extend(finished)
        with torch.no_grad():
            next_value_E = policy(observation_EO)[1]
        advantages_TE = generalised_advantages(
            rollout, next_value_E, ended_E, gamma=settings.gamma, lam=settings.gae_lambda
        )
        improve(policy, optimizer, rollout, advantages_TE, settings)
        steps = (update + 1) * settings.rollout_steps * envs.num_envs
        report(
            steps,
            float(np.mean(recent)) if recent else float("nan"),
            steps / (time.perf_counter() - started),
        )
    return episode_returns


@torch.no_grad()
def collect(
    envs: gymnasium.vector.VectorEnv,
    policy: ActorCritic,
    observation_EO: Tensor,
    ended_E: Tensor,
    num_steps: int,
) -> tuple[Rollout, Tensor, Tensor, list[float]]:
    """Act for `num_steps` in every environment; returns the rollout, where it stopped, and the
    returns of episodes that ended.
    """
    columns: list[tuple[Tensor, ...]] = []
    finished: list[float] = []
    for _ in range(num_steps):
        distribution, value_E = policy(observation_EO)
        action_E = distribution.sample()
        following, reward_E, terminated_E, truncated_E, infos = envs.step(action_E.numpy())
        reward = torch.as_tensor(reward_E, dtype=torch.float32)
        columns.append(
            (observation_EO, action_E, distribution.log_prob(action_E), reward, ended_E, value_E)
        )
        observation_EO, ended_E = (
            torch.as_tensor(following),
            torch.as_tensor(terminated_E | truncated_E, dtype=torch.float32),
        )
        if "episode" in infos:
            finished += infos["episode"]["r"][infos["_episode"]].tolist()
    return (
        Rollout(*(torch.stack(column) for column in zip(*columns, strict=True))),
        observation_EO,
        ended_E,
        finished,
    )


def generalised_advantages(
    rollout: Rollout, next_value_E: Tensor, next_ended_E: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lam A_{t+1} (arXiv 1506.02438),
    cut at the ends of episodes.
    """
    advantages_TE = torch.zeros_like(rollout.rewards)
    following_E = torch.zeros_like(next_value_E)
    for step in reversed(range(len(rollout.rewards))):
        goes_on_E = 1.0 - next_ended_E
        delta_E = rollout.rewards[step] + gamma * next_value_E * goes_on_E - rollout.values[step]
        following_E = delta_E + gamma * lam * goes_on_E * following_E
        advantages_TE[step] = following_E
        next_value_E, next_ended_E = rollout.values[step], rollout.ended[step]
    return advantages_TE


def improve(
    policy: ActorCritic,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    advantages_TE: Tensor,
    settings: Settings,
) -> None:
    """Several epochs of mini-batches on PPO's clipped objective, value error and entropy."""
    samples = (rollout.ended == 0).flatten().nonzero().squeeze(-1)
    returns = (advantages_TE + rollout.values).flatten()
    observations, actions = rollout.observations.flatten(0, 1), rollout.actions.flatten()
    log_probs, advantages = rollout.log_probs.flatten(), advantages_TE.flatten()
    for _ in range(settings.epochs):
        for batch in samples[torch.randperm(len(samples))].chunk(settings.num_minibatches):
            distribution, value_B = policy(observations[batch])
            ratio_B = (distribution.log_prob(actions[batch]) - log_probs[batch]).exp()
            advantage_B = (advantages[batch] - advantages[batch].mean()) / (
                advantages[batch].std() + 1e-8
            )
            clipped_B = ratio_B.clamp(1 - settings.clip_ratio, 1 + settings.clip_ratio)
            policy_loss = -torch.minimum(ratio_B * advantage_B, clipped_B * advantage_B).mean()
            value_loss = 0.5 * (value_B - returns[batch]).square().mean()
            loss = (
                policy_loss
                + settings.value_coef * value_loss
                - settings.entropy_coef * distribution.entropy().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
            optimizer.step()


def main() -> None:
    """Start the servers, train, and print the mean return of the last 20 episodes after every tenth
    update.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--id",
        default="CartPole-v1",
        help="a Gymnasium id with vector observations and discrete actions",
    )
    parser.add_argument("--cluster", choices=("ray", "local"), default="ray")
    parser.add_argument("--num-servers", type=int, default=2)
    parser.add_argument("--envs-per-server", type=int, default=4)
    parser.add_argument("--total-steps", type=int, default=Settings.total_steps)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.cluster == "ray":
        import ray

        ray.init()
    pool = EnvPool(
        "gymnasium",
        {"id": arguments.id},
        arguments.num_servers,
        arguments.envs_per_server,
        cluster=arguments.cluster,
        deadline_s=60.0,
    )
    envs = PoolVectorEnv(pool)

    def report(steps: int, mean_return: float, steps_per_s: float) -> None:
        print(f"step {steps:>7,}   return {mean_return:7.1f}   {steps_per_s:7.0f} steps/s")

    train(envs, Settings(total_steps=arguments.total_steps), report)
    envs.close()


def _network(size: int, outputs: int, *, last_gain: float) -> nn.Sequential:
    sizes, gains = (size, 64, 64, outputs), (2**0.5, 2**0.5, last_gain)
    layers: list[nn.Module] = []
    for index, gain in enumerate(gains):
        linear = nn.Linear(sizes[index], sizes[index + 1])
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


if __name__ == "__main__":
    main()
