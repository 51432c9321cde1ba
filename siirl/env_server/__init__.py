"""Simulators as servers, pooled for rollouts (`pool`) and for other trainers (`vector_env`).

Modules, from the inside out: `server` holds environments and answers requests; `transports` runs a
server in this process or as a Ray actor, which `connection` connects to; `server_supervisor` starts
and replaces a server; `slot` is an episode's handle, which replays the episode after a replacement
and compares results (`envs.replay_samples`); `envs.answer_checks` detects invalid answers.
"""
