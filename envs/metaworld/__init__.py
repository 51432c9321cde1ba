"""Meta-World's tasks and simulator; the environment is in `envs.metaworld.metaworld_env`."""
