"""Environments behind OpenEnv servers (https://github.com/meta-pytorch/OpenEnv), and the JSON forms
that `siirl serve` shares with them.

Modules: `openenv_env` is the environment, and `session` implements the protocol. `description`
reads a server's description. `text_form`, `text_play` and `space_play` translate observations and
actions. `wire` defines the JSON of arrays, spaces and specs.
"""
