"""Trains Stable-Baselines3's PPO or CleanRL's file; a process of `benchmarks.control` each.

    python -m benchmarks.control_contenders sb3 --task Hopper-v5 --seed 1 --steps 300000 --folder F
    python -m benchmarks.control_contenders cleanrl --cleanrl FOLDER ... (the same)

Writes F/episodes.json: for each episode that ended the environment steps so far and its return.
CleanRL's file runs unchanged, on the processor. It was written for Gymnasium 0.29, so three calls
get the meaning that they had there: vectorised environments begin the next episode in the step that
ends one, `TransformObservation` keeps the observation space, and the file's own log of returns, in
a layout that is gone, has no entries.
"""

import argparse
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks.control_tasks import TASKS

Found = list[tuple[int, float]]
"""Environment steps so far, and the return of an episode that ended there."""


def main() -> None:
    """Train one contender."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("contender", choices=["sb3", "cleanrl"])
    parser.add_argument("--task", required=True, choices=list(TASKS))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cleanrl", type=Path, help="folder of CleanRL's files")
    parser.add_argument("--processes", action="store_true", help="of sb3: SubprocVecEnv")
    flags = parser.parse_args()
    found: Found = []
    if flags.contender == "sb3":
        train_sb3(
            flags.task,
            seed=flags.seed,
            steps=flags.steps,
            found=found,
            processes=flags.processes,
        )
    else:
        file = (flags.cleanrl / TASKS[flags.task].cleanrl).resolve()
        os.chdir(flags.folder)
        train_cleanrl(file, task=flags.task, seed=flags.seed, steps=flags.steps, found=found)
    (flags.folder / "episodes.json").write_text(json.dumps(found))


def train_sb3(task: str, *, seed: int, steps: int, found: Found, processes: bool = False) -> None:
    """Train with the zoo's settings; adds the episodes to `found`.

    Args:
        task: Gymnasium's id.
        seed: Seed of environments and policy.
        steps: Environment steps.
        found: See above.
        processes: Whether each environment has a process of its own.
    """
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    torch.set_num_threads(1)
    settings = TASKS[task]
    environment: Any = make_vec_env(
        task,
        n_envs=settings.sb3_environments,
        seed=seed,
        vec_env_cls=SubprocVecEnv if processes else DummyVecEnv,
    )
    if settings.normalize:
        environment = VecNormalize(environment, gamma=settings.sb3["gamma"])

    class Episodes(BaseCallback):
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    found.append((self.num_timesteps, float(info["episode"]["r"])))
            return True

    options = {name: _schedule(value) for name, value in settings.sb3.items()}
    if "policy_kwargs" in options:
        kind = getattr(torch.nn, options["policy_kwargs"]["activation_fn"])
        options["policy_kwargs"] = {**options["policy_kwargs"], "activation_fn": kind}
    model = PPO("MlpPolicy", environment, seed=seed, device="cpu", **options)
    model.learn(steps, callback=Episodes())


def _schedule(value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    first = float(value.removeprefix("lin_"))
    return lambda left: first * left


def train_cleanrl(file: Path, *, task: str, seed: int, steps: int, found: Found) -> None:
    """Run CleanRL's file in this process; adds the episodes to `found`."""
    transform: Any = gymnasium.wrappers.TransformObservation

    class Environments(gymnasium.vector.SyncVectorEnv):
        def __init__(self, makers: Any) -> None:
            super().__init__(makers, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
            self.steps = 0

        def step(self, actions: Any) -> Any:
            *results, infos = super().step(actions)
            self.steps += self.num_envs
            final = infos.pop("final_info", None)
            if final is not None:
                returns = final["episode"]["r"][infos["_final_info"]]
                found.extend((self.steps, float(value)) for value in returns)
            return *results, infos

    def transformed(env: Any, change: Any) -> Any:
        return transform(env, change, env.observation_space)

    gymnasium.vector.SyncVectorEnv = Environments  # type: ignore[misc, assignment]
    gymnasium.wrappers.TransformObservation = transformed  # type: ignore[misc, assignment]
    words = ["--env-id", task, "--seed", str(seed), "--total-timesteps", str(steps), "--no-cuda"]
    sys.argv = [str(file), *words]
    runpy.run_path(str(file), run_name="__main__")


if __name__ == "__main__":
    main()
