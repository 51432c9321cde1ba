"""Environments behind OpenEnv servers (https://github.com/meta-pytorch/OpenEnv), and the JSON forms
that `siirl serve` shares with them.

Modules: `openenv_env` is the environment; `session` speaks the protocol; `description` reads what a
server says about itself; `text_form` and `space_form` translate observations and actions; `wire` is
the JSON of arrays, spaces and specs.
"""
