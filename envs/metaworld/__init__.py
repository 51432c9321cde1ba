"""Meta-World's tasks and simulator; `envs.mujoco` has the environment."""
