"""Simulators as servers: `pool.EnvPool` is what a rollout uses, `vector_env.PoolVectorEnv` the same
for trainers of other projects.

From the inside out: `server` holds environments and answers requests; `hosts` runs a server in this
process or as a Ray actor, which `connection` leads to; `supervisor` is one place of the pool, whose
server may be replaced; `episode_record` brings an episode back after that; `answer_checks` knows
garbage.
"""
