"""Meta-World's tasks and simulator; `envs.metaworld.metaworld_env` has the environment."""
