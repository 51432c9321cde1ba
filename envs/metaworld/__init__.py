"""Meta-World's tasks and their simulator, which `envs.mujoco` makes an environment of."""
